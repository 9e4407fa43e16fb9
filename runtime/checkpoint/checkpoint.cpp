#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>

#include "runtime/checkpoint/checkpoint_formats.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime {
namespace {

std::vector<float> values_of(const CheckpointTensor& tensor) {
  const gguf::TypeTraits& traits = gguf::traits(tensor.type);
  const std::size_t blocks = tensor.data.size() / static_cast<std::size_t>(traits.block_bytes);
  std::vector<float> values(blocks * static_cast<std::size_t>(traits.block_elements));
  gguf::dequantise(tensor.type, tensor.data, values.data());
  return values;
}

}  // namespace

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& model) {
  return gguf::is_file(model) ? open_gguf_checkpoint(model) : open_folder_checkpoint(model);
}

bool same_values(const CheckpointTensor& a, const CheckpointTensor& b) {
  if (a.type == b.type) return std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
  return values_of(a) == values_of(b);
}

}  // namespace hayloft::runtime
