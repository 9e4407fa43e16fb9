#include <bit>
#include <cstring>

#include "offload/error.h"
#include "offload/half.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/map_file.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used in place");

namespace {

// Elements that lie at any address, as the format promises no alignment.
template <class Element, class Convert>
std::vector<float> convert(std::span<const std::byte> data, Convert to_float_of) {
  std::vector<float> out(data.size() / sizeof(Element));
  for (std::size_t i = 0; i < out.size(); ++i) {
    Element element;
    std::memcpy(&element, data.data() + i * sizeof(Element), sizeof(Element));
    out[i] = to_float_of(element);
  }
  return out;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), mapping_(map_file(path)), tensors_(parse_safetensors(mapping_->bytes(), path.string())) {
  mapping_->check();
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const auto tensor = tensors_.find(name);
  if (tensor == tensors_.end()) fail("{}: has no tensor {}", path_.string(), printable(name));
  return tensor->second;
}

std::vector<float> to_f32(const TensorView& tensor, const std::string& name) {
  if (tensor.dtype == "F32") return convert<float>(tensor.data, [](float x) { return x; });
  if (tensor.dtype == "F16") return convert<f16>(tensor.data, [](f16 x) { return to_float(x); });
  if (tensor.dtype == "BF16") return convert<bf16>(tensor.data, [](bf16 x) { return to_float(x); });
  if (tensor.dtype == "F64") return convert<double>(tensor.data, [](double x) { return static_cast<float>(x); });
  fail("tensor {} has dtype {}; it must be F64, F32, F16 or BF16", name, tensor.dtype);
}

std::vector<float> to_f32(const TensorView& tensor, std::int64_t begin, std::int64_t count, const std::string& name) {
  const std::size_t width = tensor.data.size() / static_cast<std::size_t>(tensor.elements());
  const auto from = static_cast<std::size_t>(begin) * width;
  return to_f32({tensor.dtype, {count}, tensor.data.subspan(from, static_cast<std::size_t>(count) * width)}, name);
}

}  // namespace hayloft::runtime
