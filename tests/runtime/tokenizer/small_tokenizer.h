#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

// Tokenizers of a handful of tokens, written out in the test that reads them.
namespace hayloft::test {

using nlohmann::json;
using Tokens = std::vector<std::int32_t>;

// A tokenizer over single characters, ids in their order, with `merges` whose results follow.
inline json characters(const std::vector<std::string>& alphabet,
                       const std::vector<std::pair<std::string, std::string>>& merges) {
  json vocab = json::object();
  for (const auto& character : alphabet) vocab[character] = vocab.size();
  json list = json::array();
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = vocab.size();
    list.push_back({left, right});
  }
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

inline json abc() {
  return characters({"a", "b", "c", "d", " "}, {{"b", "c"}, {"a", "b"}, {"ab", "c"}, {"a", "bc"}, {"c", "d"}});
}

inline runtime::Tokenizer read(const json& document) {
  return runtime::Tokenizer::from_json(document.dump(), "test.json");
}

// The texts of the tokens of `text`.
inline std::vector<std::string> pieces(const json& document, const std::string& text) {
  const runtime::Tokenizer tokenizer = read(document);
  std::vector<std::string> out;
  for (const auto token : tokenizer.encode(text)) out.push_back(tokenizer.decode({token}, /*special=*/true));
  return out;
}
using Pieces = std::vector<std::string>;

// The words that a pre-tokenizer makes of a text: every substring is a token, and words that are tokens stay whole.
inline Pieces words(const json& pre_tokenizer, const std::string& text) {
  json vocab = json::object();
  for (std::size_t begin = 0; begin < text.size(); ++begin) {
    for (std::size_t size = 1; begin + size <= text.size(); ++size) {
      const std::string word = text.substr(begin, size);
      if (!vocab.contains(word)) vocab[word] = vocab.size();
    }
  }
  const json merge = {text.substr(0, 1), text.substr(1, 1)};  // without any, the file would count as damaged
  return pieces({{"model", {{"vocab", vocab}, {"merges", json::array({merge})}, {"ignore_merges", true}}},
                 {"pre_tokenizer", pre_tokenizer}},
                text);
}

inline json split(const std::string& pattern, const std::string& behavior, bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}};
}

inline json added_token(int id, const std::string& content, const std::vector<std::string>& flags = {}) {
  json token = {{"id", id}, {"content", content}, {"normalized", false}};
  for (const auto& flag : flags) token[flag] = true;
  return token;
}

}  // namespace hayloft::test
