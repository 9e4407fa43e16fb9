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
// model.layers.L.mlp.gate.weight, model.layers.L.mlp.experts.E.gate_proj.weight, up_proj or down_proj; or its bias.
// Files have one of these forms, whatever their architecture, but for gpt_oss' own (alternating_experts.h).
std::vector<FusedPart> expert_places(std::string_view name, const ModelConfig& config);

// Returns the columns of a matrix's shape; 0 for a vector.
inline int columns_of(std::initializer_list<int> shape) {
  return shape.size() == 2 ? *(shape.begin() + 1) : 0;
}

// Takes the whole tensor from a checkpoint, as `columns` wide, and returns the part's rows of it. 0 columns: the rows
// are numbers of vectors.
CheckpointTensor take_part(Checkpoint& checkpoint, const FusedPart& part, int columns);

// The part's rows of the whole tensor.
CheckpointTensor rows_of(const CheckpointTensor& whole, const FusedPart& part);

}  // namespace hayloft::runtime
