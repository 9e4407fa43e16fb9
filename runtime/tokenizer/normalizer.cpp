#include "runtime/tokenizer/normalizer.h"

#include <utility>

#include "runtime/tokenizer/bpe/bytes.h"
#include "runtime/tokenizer/growth.h"
#include "runtime/tokenizer/json.h"

namespace hayloft::runtime {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14, which builds the fuzz targets, does not deduce it yet

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Char first = utf8_at(text, 0);
    if (!is_white_space(first.code)) break;
    text.remove_prefix(first.length);
  }
  while (right && !text.empty()) {
    const std::size_t last = utf8_before(text, text.size());
    if (!is_white_space(utf8_at(text, last).code)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

}  // namespace

Regex read_pattern(const Field& pattern) {
  if (const auto literal = pattern.find("String")) return {literal->text(), Regex::Syntax::literal, literal->where()};
  const Field regex = pattern.at("Regex");
  return {regex.text(), Regex::Syntax::oniguruma, regex.where()};
}

Normalizer::Normalizer(const Field& normalizer) : where_(normalizer.where()) {
  for (const Field& step : flatten_sequence(normalizer, "normalizers")) steps_.push_back(read_step(step));
}

Normalizer::Step Normalizer::read_step(const Field& field) {
  const std::string& type = field.at("type").text();
  if (type == "NFC") return NormalForm::nfc;
  if (type == "NFD") return NormalForm::nfd;
  if (type == "NFKC") return NormalForm::nfkc;
  if (type == "NFKD") return NormalForm::nfkd;
  if (type == "Lowercase") return Lowercase{};
  if (type == "ByteLevel") return ByteLetters{};
  if (type == "Strip") return Strip{field.flag("strip_left", true), field.flag("strip_right", true)};
  if (type == "StripAccents") return Replace{Regex("\\p{M}", Regex::Syntax::oniguruma, field.where()), ""};
  if (type == "Prepend") return Prepend{field.at("prepend").text()};
  if (type == "Replace") return Replace{read_pattern(field.at("pattern")), field.at("content").text()};
  fail("{}: a normalizer of type '{}' is not supported", field.where(), printable(type));
}

std::string Normalizer::run(const Step& step, std::string text, Growth& growth) {
  return std::visit(Overloaded{
                        [&](NormalForm form) { return normalize(text, form); },
                        [&](const Lowercase&) { return lowercase(text); },
                        [&](const ByteLetters&) { return to_byte_letters(text); },
                        [&](const Strip& s) { return std::string(strip(text, s.left, s.right)); },
                        [&](const Prepend& prepend) {
                          if (text.empty()) return std::move(text);
                          growth.step(text.size() + prepend.content.size());
                          text.insert(0, prepend.content);
                          return std::move(text);
                        },
                        [&](const Replace& replace) {
                          Regex::Matcher matcher(replace.pattern);
                          return replace_all(text, matcher, replace.content, growth.most());
                        },
                    },
                    step);
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  Growth growth(where_, text.size());
  for (const Step& step : steps_) {
    result = run(step, std::move(result), growth);
    growth.step(result.size());
  }
  return result;
}

}  // namespace hayloft::runtime
