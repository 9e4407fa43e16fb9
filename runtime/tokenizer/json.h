#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime {

// A value of a tokenizer.json together with where it stands, so that every complaint names file and field. A view: the
// document and the file's name outlive it.
class Field {
 public:
  Field(const nlohmann::json& value, const std::string& file, std::string path = {})
      : value_(&value), file_(&file), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return *file_; }
  const std::string& path() const { return path_; }
  std::string where() const { return path_.empty() ? *file_ : *file_ + ": " + path_; }

  // A member of an object: `at` needs it, `find` gives nothing where it is absent or null.
  Field at(std::string_view key) const;
  std::optional<Field> find(std::string_view key) const;

  std::vector<Field> elements() const;  // of an array
  const nlohmann::json& object() const;
  const std::string& text() const;
  std::int32_t token_id() const;  // an integer in [0, kMaxTokens)

  // Members with a value to take where they are absent or null.
  bool flag(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key, std::string_view otherwise) const;

  // Token ids index arrays, so a damaged one must not ask for gigabytes; today's largest vocabularies are 1/16 of this.
  static constexpr std::int32_t kMaxTokens = 1 << 22;

 private:
  Field child(const nlohmann::json& value, std::string_view key) const;
  [[noreturn]] void wrong_type(std::string_view expected) const;

  const nlohmann::json* value_;
  const std::string* file_;
  std::string path_;
};

// The steps of a component that may be one step or a {"type": "Sequence", LIST_KEY: [...]} of them, nested or not, in
// the order they run.
std::vector<Field> flatten_sequence(const Field& component, std::string_view list_key);

}  // namespace hayloft::runtime
