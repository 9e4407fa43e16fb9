#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace hayloft {

// The bytes of a file of at most 16 MiB. Throws Error naming it: unreadable, too large.
std::string read_small_file(const std::filesystem::path& path);

// Parses a JSON file of at most 16 MiB. Throws Error naming the file: unreadable, too large, not JSON (with the byte).
nlohmann::json read_json_file(const std::filesystem::path& path);

// The same with the members of objects in the order of the file.
nlohmann::ordered_json read_ordered_json_file(const std::filesystem::path& path);

// Typed access to the members of a JSON object from outside. Every mismatch is an Error that names the place (`where`,
// say "DIR/config.json"), the field, what it is and what it should be. A member that is null counts as absent unless
// said otherwise. Keeps account of what has been asked for. Views the object, which must outlive it. Not thread-safe.
class JsonFields {
 public:
  // Throws Error unless `value` is an object.
  JsonFields(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  const nlohmann::json* find(const char* name) const;  // null when absent or null
  bool is_null(const char* name) const;                // there, and null

  std::int64_t integer(const char* name, std::int64_t least, std::int64_t most) const;
  std::int64_t integer_or(const char* name, std::int64_t absent, std::int64_t least, std::int64_t most) const;
  double positive(const char* name) const;  // a finite number above zero
  double positive_or(const char* name, double absent) const;
  bool boolean_or(const char* name, bool absent) const;
  std::string text(const char* name) const;
  std::string text_or(const char* name, const std::string& absent) const;

  // Names of the members that nobody has asked for, in alphabetical order; without those that say nothing: null, false
  // and what is empty.
  std::vector<std::string> unread() const;

  // Throws the Error for a field that is `found` where `expected` was needed.
  [[noreturn]] void refuse(const char* name, const nlohmann::json& found, const std::string& expected) const;

 private:
  const nlohmann::json& require(const char* name) const;

  const nlohmann::json& object_;
  std::string where_;
  mutable std::set<std::string, std::less<>> read_;
};

// A JSON value as an integer in [least, most]; false when it is anything else.
bool read_integer(const nlohmann::json& value, std::int64_t least, std::int64_t most, std::int64_t& out);

// Text from a file, fit for a one-line message: control characters as '?', cut after 100 bytes.
std::string printable(std::string_view text);

}  // namespace hayloft
