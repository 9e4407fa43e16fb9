#include "runtime/serve/openai/fields.h"

#include <fmt/format.h>

#include <limits>

#include "offload/text/ordered_json.h"
#include "offload/text/visible.h"

namespace hayloft::runtime::serve::openai {
namespace {

constexpr int kMostNested = 100;           // copies, comparisons and text of a value call themselves for each level
constexpr std::size_t kLongestName = 100;  // of a field, in a message

}  // namespace

std::string shown_name(std::string_view name) {
  return visible(name.substr(0, kLongestName), Lines::joined);
}

void refuse(const std::string& field, const std::string& message) {
  throw BadRequest(400, field.empty() ? message : fmt::format("{}: {}", field, message), field);
}

void refuse_unknown(const std::string& object, const std::string& name) {
  refuse(shown_name(name), fmt::format("{} does not honour this field, and ignores none: leave it out", object));
}

Json parse_object(std::string_view body) {
  Json object;
  try {
    object = parse_ordered_json(body, LongIntegers::refused, kMostNested);
  } catch (const Error& error) {
    refuse("", fmt::format("the body: {}", error.what()));
  }
  if (!object.is_object()) refuse("", "the body must be a JSON object");
  return object;
}

std::string dumped(const Json& json) {
  return text_of_json(json);
}

bool has(const Json& object, const char* field) {
  return object.contains(field) && !object[field].is_null();
}

std::string Value::text() const {
  if (!json_.is_string()) refuse("must be a string");
  return json_.get<std::string>();
}

bool Value::flag() const {
  if (!json_.is_boolean()) refuse("must be true or false");
  return json_.get<bool>();
}

std::int64_t Value::integer(std::int64_t least, std::int64_t most) const {
  // An integer above the range of int64 is held as unsigned.
  const bool fits =
      json_.is_number_integer() &&
      !(json_.is_number_unsigned() &&
        json_.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
  if (!fits || json_.get<std::int64_t>() < least || json_.get<std::int64_t>() > most) {
    refuse(fmt::format("must be an integer from {} to {}", least, most));
  }
  return json_.get<std::int64_t>();
}

float Value::number(double least, double most) const {
  if (!json_.is_number() || !(json_.get<double>() >= least && json_.get<double>() <= most)) {
    refuse(fmt::format("must be a number from {} to {}", least, most));
  }
  return json_.get<float>();
}

const Json& Value::object() const {
  if (!json_.is_object()) refuse("must be an object");
  return json_;
}

const Json& Value::list() const {
  if (!json_.is_array()) refuse("must be a list");
  return json_;
}

namespace must_be {

void text(const Value& value) {
  value.text();
}

void flag(const Value& value) {
  value.flag();
}

void integer(const Value& value) {
  value.integer(std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max());
}

void list(const Value& value) {
  value.list();
}

void labels(const Value& value) {
  for (const auto& [name, each] : value.object().items()) Value(value.name() + "." + shown_name(name), each).text();
}

void cache_mark(const Value& value) {
  for (const auto& [name, each] : value.object().items()) {
    const Value field(value.name() + "." + name, each);
    if (name != "type" && name != "ttl") refuse_unknown("cache_control", field.name());
    if (name == "ttl" && !each.is_null()) field.only({"5m", "1h"});
  }
  if (!value.json().contains("type") || value.json()["type"] != "ephemeral") value.refuse("its type must be ephemeral");
}

}  // namespace must_be

void Value::only(std::initializer_list<Json> allowed) const {
  std::string values;
  for (const Json& each : allowed) {
    if (json_ == each) return;
    values += (values.empty() ? "" : " or ") + each.dump();
  }
  refuse(fmt::format("this server does not support it; it may be {} or absent", values));
}

}  // namespace hayloft::runtime::serve::openai
