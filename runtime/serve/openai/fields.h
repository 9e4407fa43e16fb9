#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "offload/error.h"

namespace hayloft::runtime::serve::openai {

// A request that cannot be honoured, with the HTTP status that says so and the field at fault.
class BadRequest : public Error {
 public:
  BadRequest(int status, const std::string& message, std::string field = {})
      : Error(message), status_(status), field_(std::move(field)) {}
  int status() const { return status_; }
  const std::string& field() const { return field_; }

 private:
  int status_;
  std::string field_;
};

[[noreturn]] void refuse(const std::string& field, const std::string& message);  // BadRequest 400

// The body as a JSON object, of bounded depth. Throws BadRequest saying where it is none.
nlohmann::json parse_object(std::string_view body);

// The fields of a request, typed: a field that is there with another type, or out of range, is refused by name; null
// counts as absent.
class Fields {
 public:
  explicit Fields(const nlohmann::json& object) : object_(object) {}

  const nlohmann::json* find(const char* name) const;
  std::string text(const char* name, const std::string& otherwise) const;
  bool flag(const char* name, bool otherwise) const;
  std::int64_t integer(const char* name, std::int64_t otherwise, std::int64_t least, std::int64_t most) const;
  double number(const char* name, double otherwise, double least, double most) const;

  // What this server cannot do: refused when it is there with another value than `only`.
  void unsupported(const char* name, const nlohmann::json& only = nullptr) const;

 private:
  const nlohmann::json& object_;
};

}  // namespace hayloft::runtime::serve::openai
