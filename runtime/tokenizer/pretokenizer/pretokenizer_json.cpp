#include <utility>

#include "runtime/tokenizer/json.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/pretokenizer/pretokenizer.h"

// Reads a PreTokenizer from a tokenizer.json.
namespace hayloft::runtime {
namespace {

// GPT-2's split (openai/gpt-2, encoder.py), which the ByteLevel step carries within itself: contractions, words,
// numbers and punctuation, each with the space before it, and white space.
constexpr std::string_view kGpt2Split = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// The Whitespace step's \w is that of Rust's regex crate, which has the zero-width joiners.
constexpr std::string_view kWordOrSymbols = R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)";
constexpr std::string_view kPunctuation = R"([\p{P}!-/:-@\x5B-`{-~])";

}  // namespace

PreTokenizer::PreTokenizer(const Field& pre_tokenizer) : where_(pre_tokenizer.where()) {
  for (const Field& step : flatten_sequence(pre_tokenizer, "pretokenizers")) read_step(step);
  byte_level_ = !steps_.empty() && std::holds_alternative<ByteLetters>(steps_.back());
  if (byte_level_) steps_.pop_back();
}

PreTokenizer::Behavior PreTokenizer::read_behavior(const Field& field) {
  const std::string& name = field.text();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  fail("{}: unknown behavior '{}'", field.where(), printable(name));
}

void PreTokenizer::add_split(std::string_view pattern, Regex::Syntax syntax, Behavior behavior, bool invert,
                             const Field& field) {
  steps_.emplace_back(Split{Regex(pattern, syntax, field.where()), behavior, invert});
}

// The form of before 2024 has add_prefix_space instead of prepend_scheme.
void PreTokenizer::add_metaspace(const Field& field) {
  const std::string replacement = field.text("replacement", "\u2581");
  if (replacement.empty() || utf8_at(replacement, 0).length != replacement.size()) {
    fail("{}.replacement: must be one character", field.where());
  }
  const std::string scheme = field.text("prepend_scheme", field.flag("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    fail("{}.prepend_scheme: unknown scheme '{}'", field.where(), printable(scheme));
  }
  steps_.emplace_back(Metaspace{replacement, scheme == "always"  ? Scheme::always
                                             : scheme == "first" ? Scheme::first
                                                                 : Scheme::never});
  if (!field.flag("split", true)) return;
  add_split(replacement, Regex::Syntax::literal, Behavior::merged_with_next, false, field);
}

void PreTokenizer::read_step(const Field& field) {
  constexpr auto kRegex = Regex::Syntax::oniguruma;
  const std::string& type = field.at("type").text();
  if (type == "ByteLevel") {
    if (field.flag("add_prefix_space", true)) steps_.emplace_back(PrependSpace{});
    if (field.flag("use_regex", true)) add_split(kGpt2Split, kRegex, Behavior::isolated, false, field);
    steps_.emplace_back(ByteLetters{});
  } else if (type == "Split") {
    steps_.emplace_back(
        Split{read_pattern(field.at("pattern")), read_behavior(field.at("behavior")), field.flag("invert", false)});
  } else if (type == "Metaspace") {
    add_metaspace(field);
  } else if (type == "Digits") {
    const bool individual = field.flag("individual_digits", false);
    add_split("\\p{N}", kRegex, individual ? Behavior::isolated : Behavior::contiguous, false, field);
  } else if (type == "Whitespace") {
    add_split(kWordOrSymbols, kRegex, Behavior::removed, true, field);
  } else if (type == "WhitespaceSplit") {
    add_split("\\s", kRegex, Behavior::removed, false, field);
  } else if (type == "Punctuation") {
    const auto behavior = field.find("behavior");
    add_split(kPunctuation, kRegex, behavior ? read_behavior(*behavior) : Behavior::isolated, false, field);
  } else if (type == "BertPreTokenizer") {
    add_split("\\s", kRegex, Behavior::removed, false, field);
    add_split(kPunctuation, kRegex, Behavior::isolated, false, field);
  } else if (type == "CharDelimiterSplit") {
    add_split(field.at("delimiter").text(), Regex::Syntax::literal, Behavior::removed, false, field);
  } else {
    fail("{}: a pre-tokenizer of type '{}' is not supported", field.where(), printable(type));
  }
}

}  // namespace hayloft::runtime
