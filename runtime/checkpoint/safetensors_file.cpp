#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "offload/error.h"
#include "offload/half.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used in place");

namespace {

std::string system_message() {
  return std::generic_category().message(errno);
}

// Closes a descriptor at the end of a scope; a mapping outlives it.
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

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

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  // Not blocking, so that a pipe under this name is refused instead of waited for.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) fail("{}: cannot be opened: {}", path.string(), system_message());
  struct stat status {};
  if (::fstat(file.number, &status) != 0) fail("{}: cannot be read: {}", path.string(), system_message());
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
  if (status.st_size == 0) fail("{}: the file is empty", path.string());
  mapping_ = std::make_unique<const offload::MappedFile>(file.number, static_cast<std::uint64_t>(status.st_size), path);
  tensors_ = parse_safetensors(mapping_->bytes(), path.string());
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

}  // namespace hayloft::runtime
