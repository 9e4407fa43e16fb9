#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "offload/error.h"

namespace hayloft::runtime::serve::openai {

// Objects keep the order of their fields: what passes through to a chat template reaches the model as it was sent.
using Json = nlohmann::ordered_json;

// A request that cannot be honoured, with the HTTP status that says so, the field at fault and the API's code, where it
// has one.
class BadRequest : public Error {
 public:
  BadRequest(int status, const std::string& message, std::string field = {}, std::string code = {})
      : Error(message), status_(status), field_(std::move(field)), code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& field() const { return field_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string field_;
  std::string code_;
};

[[noreturn]] void refuse(const std::string& field, const std::string& message);  // BadRequest 400

// The body as a JSON object, of bounded depth. Throws BadRequest saying where it is none.
Json parse_object(std::string_view body);

// The beginning of a name that a client has sent, fit for a message.
std::string shown_name(std::string_view name);

// JSON of one line; what is no UTF-8 becomes U+FFFD.
std::string dumped(const Json& json);

// Returns whether an object has a field; null counts as absent.
bool has(const Json& object, const char* field);

// A field of a request, whose value is read as what it must be: of another type, or out of range, it is refused by
// name. A view.
class Value {
 public:
  Value(std::string name, const Json& json) : name_(std::move(name)), json_(json) {}

  const std::string& name() const { return name_; }  // "stream_options.include_usage", say
  const Json& json() const { return json_; }
  std::string text() const;
  bool flag() const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  float number(double least, double most) const;
  const Json& object() const;
  const Json& list() const;

  // Refuses every value but these, which ask for nothing that is not done anyway.
  void only(std::initializer_list<Json> allowed) const;
  [[noreturn]] void refuse(const std::string& message) const { openai::refuse(name_, message); }

 private:
  std::string name_;
  const Json& json_;
};

// A field that is honoured: its name, and how it is taken over.
template <class Into>
struct Field {
  const char* name;
  void (*read)(const Value& value, Into& into);
};

// A field that changes nothing here, and what it must be all the same.
struct Meaningless {
  const char* name;
  void (*check)(const Value& value);
};

// Checks such a field: each function refuses all else by the field's name.
namespace must_be {

void text(const Value& value);
void flag(const Value& value);
void integer(const Value& value);
void list(const Value& value);
void labels(const Value& value);      // an object of texts
void cache_mark(const Value& value);  // {"type": "ephemeral"}, with a "ttl" or without

}  // namespace must_be

// Refuses a field that no table has: nothing is ignored. `object` names where it stands.
[[noreturn]] void refuse_unknown(const std::string& object, const std::string& name);

// Takes over a field of `object`: one of `tables` is read, one of `meaningless` is checked and passed over, and
// any other is refused; null counts as absent. `value` has the field's full name, for messages.
template <class Into>
void read_field(const std::string& name, const Value& value, const std::string& object,
                std::initializer_list<std::span<const Field<Into>>> tables, std::span<const Meaningless> meaningless,
                Into& into) {
  if (value.json().is_null()) return;
  for (const auto table : tables) {
    for (const Field<Into>& field : table) {
      if (name == field.name) return field.read(value, into);
    }
  }
  for (const Meaningless& each : meaningless) {
    if (name == each.name) return each.check(value);
  }
  refuse_unknown(object, value.name());
}

// The same of all fields of an object, in their order; `prefix` is put before their names.
template <class Into>
void read_fields(const Json& json, const std::string& object, const std::string& prefix,
                 std::initializer_list<std::span<const Field<Into>>> tables, std::span<const Meaningless> meaningless,
                 Into& into) {
  for (const auto& [name, value] : json.items()) {
    read_field<Into>(name, Value(prefix + name, value), object, tables, meaningless, into);
  }
}

}  // namespace hayloft::runtime::serve::openai
