#include "runtime/tokenizer/json.h"

#include <utility>

namespace hayloft::runtime {
namespace {

// Real files nest once and have a handful of steps; the limits keep damaged ones from exhausting the stack.
constexpr int kMaxNesting = 8;
constexpr std::size_t kMaxSteps = 64;

void flatten(const Field& component, std::string_view list_key, int depth, std::vector<Field>& steps) {
  if (component.at("type").text() != "Sequence") {
    steps.push_back(component);
  } else {
    if (depth == kMaxNesting) fail("{}: sequences nest more than {} deep", component.where(), kMaxNesting);
    for (const Field& step : component.at(list_key).elements()) flatten(step, list_key, depth + 1, steps);
  }
  if (steps.size() > kMaxSteps) fail("{}: more than {} steps in sequence", component.where(), kMaxSteps);
}

}  // namespace

Field Field::child(const nlohmann::json& value, std::string_view key) const {
  return Field(value, *file_, path_.empty() ? printable(key) : fmt::format("{}.{}", path_, printable(key)));
}

void Field::wrong_type(std::string_view expected) const {
  fail("{}: expected {}, found {}", where(), expected, value_->type_name());
}

Field Field::at(std::string_view key) const {
  if (auto found = find(key)) return *found;
  fail("{}: field '{}' is missing", where(), printable(key));
}

std::optional<Field> Field::find(std::string_view key) const {
  const auto& members = object();
  const auto it = members.find(key);
  if (it == members.end() || it->is_null()) return std::nullopt;
  return child(*it, key);
}

std::vector<Field> Field::elements() const {
  if (!value_->is_array()) wrong_type("an array");
  std::vector<Field> fields;
  fields.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i) {
    fields.emplace_back((*value_)[i], *file_, fmt::format("{}[{}]", path_, i));
  }
  return fields;
}

const nlohmann::json& Field::object() const {
  if (!value_->is_object()) wrong_type("an object");
  return *value_;
}

const std::string& Field::text() const {
  if (!value_->is_string()) wrong_type("a string");
  return value_->get_ref<const std::string&>();
}

std::int32_t Field::token_id() const {
  if (!value_->is_number_integer()) wrong_type("a token id");
  const auto id = value_->get<std::int64_t>();
  // An unsigned number past the signed range reads as negative here, which is refused all the same.
  if (id < 0 || id >= kMaxTokens) fail("{}: token id {} is not in [0, {})", where(), value_->dump(), kMaxTokens);
  return static_cast<std::int32_t>(id);
}

bool Field::flag(std::string_view key, bool otherwise) const {
  const auto field = find(key);
  if (!field) return otherwise;
  if (!field->value().is_boolean()) field->wrong_type("true or false");
  return field->value().get<bool>();
}

std::string Field::text(std::string_view key, std::string_view otherwise) const {
  const auto field = find(key);
  return field ? field->text() : std::string(otherwise);
}

std::vector<Field> flatten_sequence(const Field& component, std::string_view list_key) {
  std::vector<Field> steps;
  flatten(component, list_key, 0, steps);
  return steps;
}

}  // namespace hayloft::runtime
