#include "offload/json_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/lfs_pointer.h"
#include "offload/text/ordered_json.h"

namespace hayloft {

namespace {

constexpr std::uintmax_t largest_file_bytes = 16u << 20;

// Short enough for a one-line message, and never recursive: a value from outside may be nested arbitrarily deep.
std::string describe(const nlohmann::json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

std::string read_small_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) fail("{}: no such file", path.string());
  if (!std::filesystem::is_regular_file(path, error)) fail("{}: not a regular file", path.string());
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) fail("{}: cannot be read: {}", path.string(), error.message());
  if (bytes > largest_file_bytes) {
    fail("{}: {} bytes is too long for this file; at most {} are read", path.string(), bytes, largest_file_bytes);
  }
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    fail("{}: cannot be read: {}", path.string(), std::generic_category().message(errno));
  }
  refuse_lfs_pointer(path.string(), text);
  return text;
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const std::string text = read_small_file(path);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& problem) {
    fail("{}: not valid JSON at byte {} of {}", path.string(), std::min(problem.byte, text.size()), text.size());
  } catch (const nlohmann::json::exception&) {  // such as a number that no double can hold
    fail("{}: not valid JSON: a value in it is out of range", path.string());
  }
}

nlohmann::ordered_json read_ordered_json_file(const std::filesystem::path& path) {
  const std::string text = read_small_file(path);
  try {
    return parse_ordered_json(text);
  } catch (const Error& error) {
    fail("{}: {}", path.string(), error.what());
  }
}

bool read_integer(const nlohmann::json& value, std::int64_t least, std::int64_t most, std::int64_t& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    return false;
  out = value.get<std::int64_t>();
  return out >= least && out <= most;
}

std::string printable(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, 100)) line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text.size() > 100 ? line + "..." : line;
}

JsonFields::JsonFields(const nlohmann::json& value, std::string where) : object_(value), where_(std::move(where)) {
  if (!value.is_object()) fail("{}: must be a JSON object, not {}", where_, describe(value));
}

const nlohmann::json* JsonFields::find(const char* name) const {
  read_.emplace(name);
  const auto member = object_.find(name);
  return member == object_.end() || member->is_null() ? nullptr : &*member;
}

std::vector<std::string> JsonFields::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.items()) {
    const bool says_nothing =
        value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
    if (!says_nothing && !read_.contains(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool JsonFields::is_null(const char* name) const {
  const auto member = object_.find(name);
  return member != object_.end() && member->is_null();
}

const nlohmann::json& JsonFields::require(const char* name) const {
  const nlohmann::json* value = find(name);
  if (!value) fail("{}: the field {} is missing", where_, name);
  return *value;
}

void JsonFields::refuse(const char* name, const nlohmann::json& found, const std::string& expected) const {
  fail("{}: {} is {}; it must be {}", where_, printable(name), describe(found), expected);
}

std::int64_t JsonFields::integer(const char* name, std::int64_t least, std::int64_t most) const {
  const nlohmann::json& value = require(name);
  std::int64_t number = 0;
  if (!read_integer(value, least, most, number)) {
    refuse(name, value, fmt::format("an integer from {} to {}", least, most));
  }
  return number;
}

std::int64_t JsonFields::integer_or(const char* name, std::int64_t absent, std::int64_t least,
                                    std::int64_t most) const {
  return find(name) ? integer(name, least, most) : absent;
}

double JsonFields::positive(const char* name) const {
  const nlohmann::json& value = require(name);
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!(number > 0) || !std::isfinite(number)) refuse(name, value, "a number above 0");
  return number;
}

double JsonFields::positive_or(const char* name, double absent) const {
  return find(name) ? positive(name) : absent;
}

bool JsonFields::boolean_or(const char* name, bool absent) const {
  const nlohmann::json* value = find(name);
  if (!value) return absent;
  if (!value->is_boolean()) refuse(name, *value, "true or false");
  return value->get<bool>();
}

std::string JsonFields::text(const char* name) const {
  const nlohmann::json& value = require(name);
  if (!value.is_string()) refuse(name, value, "a string");
  return value.get<std::string>();
}

std::string JsonFields::text_or(const char* name, const std::string& absent) const {
  return find(name) ? text(name) : absent;
}

}  // namespace hayloft
