#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "offload/error.h"

// Numbers and arrays to and from little-endian bytes. What is read comes from a file that may hold anything: every read
// is checked against what is left, and every array against the length that its place demands.
namespace hayloft {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

class ByteWriter {
 public:
  template <class T>
  void number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    array(std::span<const T>(&value, 1));
  }
  template <class T>
  void array(std::span<const T> values) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
  }
  void text(const std::string& value) {
    number(static_cast<std::uint32_t>(value.size()));
    array(std::span<const char>(value));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  // `what` names the bytes in errors.
  ByteReader(std::span<const std::byte> bytes, std::string what) : left_(bytes), what_(std::move(what)) {}

  template <class T>
  T number() {
    T value;
    copy_to(std::span<T>(&value, 1));
    return value;
  }
  template <class T>
  std::vector<T> array(std::uint64_t length) {
    if (length > left_.size() / sizeof(T)) damaged("it ends too early");
    std::vector<T> values(static_cast<std::size_t>(length));
    copy_to(std::span<T>(values));
    return values;
  }
  std::string text(std::uint32_t longest) {
    const auto length = number<std::uint32_t>();
    if (length > longest) damaged("a text is too long");
    const std::vector<char> letters = array<char>(length);
    return {letters.begin(), letters.end()};
  }
  std::size_t left() const { return left_.size(); }  // bytes
  bool done() const { return left_.empty(); }

  [[noreturn]] void damaged(const char* why) const { fail("{} is damaged: {}; have it built anew", what_, why); }

 private:
  template <class T>
  void copy_to(std::span<T> values) {
    static_assert(std::is_arithmetic_v<T>);
    if (values.size_bytes() > left_.size()) damaged("it ends too early");
    if (!values.empty()) std::memcpy(values.data(), left_.data(), values.size_bytes());
    left_ = left_.subspan(values.size_bytes());
  }

  std::span<const std::byte> left_;
  std::string what_;
};

}  // namespace hayloft
