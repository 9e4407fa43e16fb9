#include <bit>
#include <cstdlib>
#include <cstring>

#include "offload/half.h"
#include "runtime/checkpoint/gguf/blocks.h"
#include "runtime/checkpoint/gguf/types.h"

namespace hayloft::runtime::gguf {
namespace {

// One block: what its groups' scale and minimum are, and then element = scale * code + minimum, in f32 with each
// product and sum rounded.
template <class Block>
void dequantise_blocks(std::span<const std::byte> data, float* out) {
  Groups groups;
  for (std::size_t at = 0; at < data.size(); at += sizeof(Block)) {
    Block block;
    std::memcpy(&block, data.data() + at, sizeof(Block));
    unpack(block, groups);
    for (int i = 0; i < Block::elements; ++i) {
      const int group = i / Block::group;
      const float product = groups.scale[group] * static_cast<float>(groups.code[i]);
      out[i] = Block::has_minimum ? product + groups.minimum[group] : product;
    }
    out += Block::elements;
  }
}

template <class Element, class Convert>
void convert(std::span<const std::byte> data, float* out, Convert to_float_of) {
  for (std::size_t at = 0; at < data.size(); at += sizeof(Element)) {
    Element element;
    std::memcpy(&element, data.data() + at, sizeof(Element));
    *out++ = to_float_of(element);
  }
}

}  // namespace

void dequantise(TensorType type, std::span<const std::byte> data, float* out) {
  switch (type) {
    case TensorType::f32:
      std::memcpy(out, data.data(), data.size());
      return;
    case TensorType::f16:
      return convert<f16>(data, out, [](f16 x) { return to_float(x); });
    case TensorType::bf16:
      return convert<bf16>(data, out, [](bf16 x) { return to_float(x); });
    default:
      break;
  }
  const bool known = with_block(type, [&]<class Block>(Block) { dequantise_blocks<Block>(data, out); });
  if (!known) std::abort();
}

}  // namespace hayloft::runtime::gguf
