#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hayloft::runtime::gguf {

// The numbers that files have for the types of metadata values.
enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

// A list inside the mapped file. Lists have a hundred thousand entries and more, so they stay where they are until
// asked for. All checked: `bytes` hold `count` entries of `type`, none of them a list.
struct Array {
  ValueType type;
  std::uint64_t count;
  std::span<const std::byte> bytes;  // texts: each a length of 8 bytes, then the letters
};

using Value = std::variant<std::uint64_t, std::int64_t, double, bool, std::string_view, Array>;

// The key-value pairs at the beginning of a GGUF file, with typed access: every mismatch is an Error of one line that
// names the file, the key, what was found and what was expected. Texts and lists view the file's bytes.
class Metadata {
 public:
  Metadata() = default;
  Metadata(std::string file, std::map<std::string, Value, std::less<>> values)
      : file_(std::move(file)), values_(std::move(values)) {}

  const std::string& file() const { return file_; }
  const Value* find(std::string_view key) const;  // null when absent
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  const std::map<std::string, Value, std::less<>>& values() const { return values_; }

  std::int64_t integer(std::string_view key, std::int64_t least, std::int64_t most) const;
  std::int64_t integer_or(std::string_view key, std::int64_t absent, std::int64_t least, std::int64_t most) const;
  double positive(std::string_view key) const;  // a finite number above zero
  double positive_or(std::string_view key, double absent) const;
  bool boolean_or(std::string_view key, bool absent) const;
  std::string_view text(std::string_view key) const;
  std::string_view text_or(std::string_view key, std::string_view absent) const;

  // Lists whole; absent keys are refused.
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;

  // Throws the Error for a value that is not as `expected`.
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

 private:
  const Value& require(std::string_view key) const;
  const Array& array(std::string_view key, const char* expected) const;

  std::string file_;
  std::map<std::string, Value, std::less<>> values_;
};

int bytes_of(ValueType type);  // 0 for texts and lists

}  // namespace hayloft::runtime::gguf
