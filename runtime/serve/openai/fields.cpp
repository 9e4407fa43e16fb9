#include "runtime/serve/openai/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace hayloft::runtime::serve::openai {
namespace {

constexpr int kMostNested = 100;  // copies, comparisons and text of a value call themselves for each level

}  // namespace

void refuse(const std::string& field, const std::string& message) {
  throw BadRequest(400, field.empty() ? message : fmt::format("{}: {}", field, message), field);
}

nlohmann::json parse_object(std::string_view body) {
  const auto bounded = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > kMostNested) refuse("", fmt::format("the body is nested more than {} deep", kMostNested));
    return true;
  };
  try {
    nlohmann::json object = nlohmann::json::parse(body, bounded);
    if (!object.is_object()) refuse("", "the body must be a JSON object");
    return object;
  } catch (const nlohmann::json::exception& error) {
    std::string what = error.what();
    if (const std::size_t bracket = what.find("] "); bracket != std::string::npos) what.erase(0, bracket + 2);
    refuse("", "the body is not JSON: " + what);
  }
}

const nlohmann::json* Fields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string Fields::text(const char* name, const std::string& otherwise) const {
  const nlohmann::json* const value = find(name);
  if (!value) return otherwise;
  if (!value->is_string()) refuse(name, "must be a string");
  return value->get<std::string>();
}

bool Fields::flag(const char* name, bool otherwise) const {
  const nlohmann::json* const value = find(name);
  if (!value) return otherwise;
  if (!value->is_boolean()) refuse(name, "must be true or false");
  return value->get<bool>();
}

std::int64_t Fields::integer(const char* name, std::int64_t otherwise, std::int64_t least, std::int64_t most) const {
  const nlohmann::json* const value = find(name);
  if (!value) return otherwise;
  // An integer above the range of int64 is held as unsigned.
  const bool fits =
      value->is_number_integer() &&
      !(value->is_number_unsigned() &&
        value->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits || value->get<std::int64_t>() < least || value->get<std::int64_t>() > most) {
    refuse(name, fmt::format("must be an integer from {} to {}", least, most));
  }
  return value->get<std::int64_t>();
}

double Fields::number(const char* name, double otherwise, double least, double most) const {
  const nlohmann::json* const value = find(name);
  if (!value) return otherwise;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    refuse(name, fmt::format("must be a number from {} to {}", least, most));
  }
  return value->get<double>();
}

void Fields::unsupported(const char* name, const nlohmann::json& only) const {
  const nlohmann::json* const value = find(name);
  if (value && *value != only) refuse(name, "this server does not support it");
}

}  // namespace hayloft::runtime::serve::openai
