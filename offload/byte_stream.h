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
    array(std::span<const T>(&value, 1));
  }
  template <class T>
  void array(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
  }
  void text(const std::string& value) {  // its length in 32 bits before it
    number(static_cast<std::uint32_t>(value.size()));
    array(std::span<const char>(value));
  }
  void pad(std::size_t to) { bytes_.resize(to); }  // with zeros, up to `to` bytes
  void reserve(std::size_t bytes) { bytes_.reserve(bytes); }
  std::size_t size() const { return bytes_.size(); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  // `too_short` is the error when more is asked for than there is.
  ByteReader(std::span<const std::byte> bytes, std::string too_short)
      : left_(bytes), too_short_(std::move(too_short)) {}

  template <class T>
  T number() {
    T value;
    into(std::span<T>(&value, 1));
    return value;
  }
  template <class T>
  std::vector<T> array(std::uint64_t length) {
    require(length, sizeof(T));
    std::vector<T> values(static_cast<std::size_t>(length));
    into(std::span<T>(values));
    return values;
  }
  template <class T>
  void into(std::span<T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    require(values.size(), sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), left_.data(), values.size_bytes());
    left_ = left_.subspan(values.size_bytes());
  }
  std::string letters(std::uint64_t length) {
    const std::vector<char> read = array<char>(length);
    return {read.begin(), read.end()};
  }
  // Before memory is taken for `count` things of `each` bytes that are still to come.
  void require(std::uint64_t count, std::uint64_t each) const {
    if (count > left_.size() / each) fail("{}", too_short_);
  }
  void skip(std::size_t bytes) {
    require(bytes, 1);
    left_ = left_.subspan(bytes);
  }
  std::size_t left() const { return left_.size(); }  // bytes
  bool done() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
  std::string too_short_;
};

// Reads what a method keeps of a context and had saved with it; `what` names it in errors.
class IndexReader : public ByteReader {
 public:
  IndexReader(std::span<const std::byte> bytes, const std::string& what)
      : ByteReader(bytes, damage(what, "it ends too early")), what_(what) {}

  std::string text(std::uint32_t longest) {
    const auto length = number<std::uint32_t>();
    if (length > longest) damaged("a text is too long");
    return letters(length);
  }
  [[noreturn]] void damaged(const char* why) const { fail("{}", damage(what_, why)); }

 private:
  static std::string damage(const std::string& what, const char* why) {
    return fmt::format("{} is damaged: {}; have it built anew", what, why);
  }

  std::string what_;
};

}  // namespace hayloft
