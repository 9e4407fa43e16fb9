#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace hayloft::runtime {

// Some architectures keep several matrices as the rows of one: q, k and v, or gate and up, or those of all experts.
struct FusedPart {
  std::string name;  // of the tensor that holds it, in Hugging Face's form
  int first_row = 0;
  int rows = 0;        // of it
  int fused_rows = 0;  // of the whole tensor
  int experts = 0;     // not 0: the tensor is [experts][fused_rows / experts][columns]
};

// Returns where the matrix of that name lies in a model of that configuration; nothing for one that has a tensor of its
// own.
std::optional<FusedPart> fused_part(std::string_view name, const ModelConfig& config);

// Returns the places where a router or a matrix of an expert may lie, if `name` is that of one:
// model.layers.L.mlp.gate.weight, model.layers.L.mlp.experts.E.gate_proj.weight, up_proj or down_proj. Files have one
// of these forms, whatever their architecture.
std::vector<FusedPart> expert_places(std::string_view name, const ModelConfig& config);

// Takes the whole tensor from a checkpoint, as `columns` wide, and returns the part's rows of it.
CheckpointTensor take_part(Checkpoint& checkpoint, const FusedPart& part, int columns);

// The part's rows of the whole tensor.
CheckpointTensor rows_of(const CheckpointTensor& whole, const FusedPart& part);

}  // namespace hayloft::runtime
