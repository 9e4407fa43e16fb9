#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/checkpoint/checkpoint.h"

namespace hayloft::runtime {

struct TensorView;

// The tensors of a folder. Throws Error naming the file.
class FolderTensors {
 public:
  virtual ~FolderTensors() = default;
  virtual bool contains(std::string_view name) const = 0;
  // Throws unless there is one of that name and shape, which then counts as read.
  virtual const TensorView& read(const std::string& name, std::initializer_list<std::int64_t> shape) = 0;
  virtual std::string path() const = 0;  // of the file to name in messages
};

// The experts of gpt_oss as its folders have them: gate and up of all experts in one tensor, in which their rows
// alternate, and matrices either in MXFP4, NAME_blocks u8 [experts][rows][columns / 32][16] and NAME_scales u8
// [experts][rows][columns / 32], or as floats NAME [experts][columns][rows].
//
// Returns the matrix or bias of that name, model.layers.L.mlp.experts.E.gate_proj.weight for one, in memory of its own;
// nothing where the folder has no such tensor. With `sizes_alone` its bytes are any. Throws Error as read() does, and
// on another dtype.
std::optional<CheckpointTensor> alternating_expert(std::string_view name, const ModelConfig& config, bool sizes_alone,
                                                   FolderTensors& folder);

}  // namespace hayloft::runtime
