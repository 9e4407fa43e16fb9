#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/gguf/types.h"

namespace hayloft::runtime {

// One tensor of a checkpoint, in its own bytes; a view into the mapped file.
struct CheckpointTensor {
  gguf::TensorType type = gguf::TensorType::f32;
  std::span<const std::byte> data;
  // Not 0: the rows are so many heads, within which row 2i is component i and row 2i + 1 component i + d/2.
  int paired_heads = 0;
};

// A model as it lies on disk, whatever the format. Immutable; views of tensors live as long as it does.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // A folder in Hugging Face's form (config.json; model.safetensors, or every shard that model.safetensors.index.json
  // names), or a GGUF file. Reads headers only. Throws Error naming the file.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& model);

  // Throws Error naming file and field.
  virtual ModelConfig config() const = 0;

  // By its name in Hugging Face's form, as in model.layers.0.self_attn.q_proj.weight. Throws Error naming file and
  // tensor unless there is one of that shape, in a type that can be read.
  virtual CheckpointTensor at(const std::string& name, std::initializer_list<int> shape) const = 0;
};

}  // namespace hayloft::runtime
