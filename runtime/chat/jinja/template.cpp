#include "runtime/chat/jinja/template.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "offload/error.h"
#include "offload/text/utf8.h"
#include "offload/text/visible.h"
#include "runtime/chat/jinja/evaluator.h"
#include "runtime/chat/jinja/parse/lexer.h"
#include "runtime/chat/jinja/parse/parser.h"

namespace hayloft::runtime::jinja {
namespace {

std::string valid_text(std::string_view text) {
  std::string out;
  append_valid_utf8(text, /*keep_tail=*/false, out);
  return out;
}

// Fit for a terminal and a log, as a template's own message may be anything.
std::string one_line(const std::string& text) {
  constexpr std::size_t most_bytes = 1000;
  std::string line = visible(text, Lines::joined);
  if (line.size() <= most_bytes) return line;
  line.resize(valid_utf8_prefix(std::string_view(line).substr(0, most_bytes)));
  return line + "...";
}

Value value_of(const nlohmann::ordered_json& json, int nesting) {
  if (nesting > most_nesting) fail("lists and objects lie in one another more than {} deep", most_nesting);
  if (json.is_null()) return nullptr;
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() >> 63 != 0) {
    return Value::long_integer(std::to_string(json.get<std::uint64_t>()));
  }
  if (json.is_binary()) return Value::long_integer({json.get_binary().begin(), json.get_binary().end()});
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return valid_text(json.get_ref<const std::string&>());
  if (json.is_array()) {
    List items;
    for (const auto& item : json) items.push_back(value_of(item, nesting + 1));
    return Value::list(std::move(items));
  }
  if (!json.is_object()) fail("a value is no JSON");
  Dict dict;
  for (const auto& [key, item] : json.items()) dict.items.emplace_back(valid_text(key), value_of(item, nesting + 1));
  return Value::dict(std::move(dict));
}

}  // namespace

struct Template::Parsed {
  Parsed(std::string_view source, const std::string& name) {
    std::vector<Token> tokens = tokenize(source, name);
    for (const Token& token : tokens) {
      if (token.is(TokenType::name) || token.is(TokenType::text)) words.insert(token.value);
    }
    body = Parser(std::move(tokens), name).run();
  }

  std::set<std::string, std::less<>> words;
  Body body;
};

Template::Template(std::string_view source, std::string name)
    : name_(std::move(name)), parsed_(std::make_unique<Parsed>(valid_text(source), name_)) {}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

bool Template::names(std::string_view word) const {
  return parsed_->words.contains(word);
}

std::string Template::render(const nlohmann::ordered_json& variables, std::time_t now, const Limits& limits) const {
  Evaluator evaluator(limits, now);
  try {
    const Value given = value_of(variables, 0);
    if (!given.is(Kind::dict)) fail("the variables of a template are an object");
    return evaluator.run(parsed_->body, given);
  } catch (const Error& error) {
    fail("{}: line {}: {}", name_, evaluator.line(), one_line(error.what()));
  }
}

}  // namespace hayloft::runtime::jinja
