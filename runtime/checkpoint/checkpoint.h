#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  // Not 0: rows come in runs of so many, between which lie as many that are none of this tensor's.
  int run_rows = 0;
  // The decays of gated delta rules are -exp(A_log) instead of A_log.
  bool negated_exponentials = false;
  std::shared_ptr<const std::byte[]> memory = nullptr;  // that `data` lies in where it is not the file's
};

// A model as it lies on disk, whatever the format. Tensors go by their names in Hugging Face's form, as in
// model.layers.0.self_attn.q_proj.weight. Keeps account of what has been asked for. The files stay mapped as long as it
// lives. Not thread-safe.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // A folder in Hugging Face's form (config.json; model.safetensors, or every shard that model.safetensors.index.json
  // names), or a GGUF file. Throws Error naming the file: missing, damaged, or a shard that does not lie in the folder.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& model);

  // Throws Error naming file and field.
  virtual ModelConfig config() const = 0;

  virtual bool contains(std::string_view name) const = 0;

  // Throws Error naming file and tensor unless there is such a tensor of that shape, in a type that can be read.
  virtual CheckpointTensor at(const std::string& name, std::initializer_list<int> shape) = 0;

  // The names, as the file has them, of the tensors that `at` has never been called for, ascending.
  virtual std::vector<std::string> unread() const = 0;

  // Likewise, of the parts that are none of the language model's: what sees, hears, or predicts several tokens at once.
  // They are not among the unread.
  virtual std::vector<std::string> of_other_parts() const { return {}; }

  // Says whether, from now on, what at() has to put together of a file may hold anything, because its type and size are
  // all that is wanted. Not so until it is called.
  virtual void for_sizes_alone(bool /*alone*/) {}

  virtual std::string path() const = 0;  // of the file to name in messages

  // Names what says which tensors there are, for messages.
  virtual const char* configuration() const = 0;
};

// Returns whether two tensors of the same shape hold the same numbers, in whatever types.
bool same_values(const CheckpointTensor& a, const CheckpointTensor& b);

}  // namespace hayloft::runtime
