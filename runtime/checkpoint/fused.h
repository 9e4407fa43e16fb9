#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/checkpoint/checkpoint.h"

namespace hayloft::runtime {

// Some architectures keep several matrices as the rows of one: q, k and v, or gate and up.
struct FusedPart {
  std::string name;  // of the tensor that holds it, in Hugging Face's form
  int first_row = 0;
  int rows = 0;        // of it
  int fused_rows = 0;  // of the whole tensor
};

// Returns where the matrix of that name lies in a model of that configuration; nothing for one that has a tensor of its
// own.
std::optional<FusedPart> fused_part(std::string_view name, const ModelConfig& config);

// The part's rows of the whole tensor.
CheckpointTensor rows_of(const CheckpointTensor& whole, const FusedPart& part);

}  // namespace hayloft::runtime
