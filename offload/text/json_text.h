#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

// JSON as this library writes it: members in the order given, and what is not UTF-8 (an answer may end in the middle of
// a character, a folder's name may be anything) replaced by U+FFFD.
namespace hayloft {

// A whole document, indented, with a newline at its end.
inline std::string json_document(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// One line without its end, as in a file of lines.
inline std::string json_line(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

template <class T>
nlohmann::ordered_json json_or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// A whole number, but where it is more than 64 bits count.
inline nlohmann::ordered_json json_count(double count) {
  return count < 0x1p63 ? nlohmann::ordered_json(static_cast<std::int64_t>(count)) : nlohmann::ordered_json(count);
}

}  // namespace hayloft
