#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hayloft::test {

// The bytes of a GGUF file, written field by field, so that a test can also write what no tool would.
class GgufImage {
 public:
  std::uint32_t version = 3;
  std::uint64_t alignment = 32;
  std::string magic = "GGUF";

  template <class T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string text(std::string_view value) { return raw(std::uint64_t{value.size()}).append(value); }

  // A pair with the value's type number and its bytes as given.
  void pair(std::string_view key, std::uint32_t type, const std::string& bytes) {
    pairs_ += text(key) + raw(type) + bytes;
    ++pair_count;
  }
  void set(std::string_view key, std::uint32_t value) { pair(key, 4, raw(value)); }
  void set(std::string_view key, int value) { pair(key, 5, raw(std::int32_t{value})); }
  void set(std::string_view key, float value) { pair(key, 6, raw(value)); }
  void set(std::string_view key, bool value) { pair(key, 7, raw(static_cast<std::uint8_t>(value))); }
  void set(std::string_view key, std::string_view value) { pair(key, 8, text(value)); }
  void set(std::string_view key, const char* value) { set(key, std::string_view(value)); }
  void set(std::string_view key, const std::vector<std::string>& values) {
    std::string bytes = raw(std::uint32_t{8}) + raw(std::uint64_t{values.size()});
    for (const std::string& value : values) bytes += text(value);
    pair(key, 9, bytes);
  }
  void set(std::string_view key, const std::vector<std::int32_t>& values) {
    std::string bytes = raw(std::uint32_t{5}) + raw(std::uint64_t{values.size()});
    for (const std::int32_t value : values) bytes += raw(value);
    pair(key, 9, bytes);
  }
  void set(std::string_view key, const std::vector<float>& values) {
    std::string bytes = raw(std::uint32_t{6}) + raw(std::uint64_t{values.size()});
    for (const float value : values) bytes += raw(value);
    pair(key, 9, bytes);
  }

  // A tensor whose data follow those before; shape as the file has it, the fastest dimension first.
  void tensor(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
              const std::string& data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    describe(name, shape, type, data_.size());
    data_ += data;
  }
  void describe(std::string_view name, const std::vector<std::uint64_t>& shape, std::uint32_t type,
                std::uint64_t offset) {
    tensors_ += text(name) + raw(static_cast<std::uint32_t>(shape.size()));
    for (const std::uint64_t length : shape) tensors_ += raw(length);
    tensors_ += raw(type) + raw(offset);
    ++tensor_count;
  }

  std::string bytes() const {
    std::string out = magic + raw(version) + raw(tensor_count) + raw(pair_count) + pairs_ + tensors_;
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data_;
  }

  std::uint64_t tensor_count = 0;  // as the header says
  std::uint64_t pair_count = 0;

 private:
  std::string pairs_, tensors_, data_;
};

}  // namespace hayloft::test
