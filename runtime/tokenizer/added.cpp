#include "runtime/tokenizer/added.h"

#include <algorithm>
#include <tuple>

#include "runtime/tokenizer/bpe/bpe.h"
#include "runtime/tokenizer/json.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime {

namespace {

template <class Edges>
auto edge_from(Edges& edges, std::uint8_t byte) {
  return std::lower_bound(edges.begin(), edges.end(), byte, [](const auto& edge, auto b) { return edge.first < b; });
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher() : nodes_(1) {}

void AddedTokenMatcher::add(std::string_view text, const AddedToken& token) {
  starts_[static_cast<std::uint8_t>(text[0])] = true;
  std::size_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    auto& next = nodes_[node].next;
    auto it = edge_from(next, byte);
    if (it == next.end() || it->first != byte) {
      it = next.insert(it, {byte, static_cast<std::uint32_t>(nodes_.size())});
      node = it->second;
      nodes_.emplace_back();
    } else {
      node = it->second;
    }
  }
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip});
}

const AddedTokenMatcher::Node* AddedTokenMatcher::descend(const Node& node, std::uint8_t byte) const {
  const auto edge = edge_from(node.next, byte);
  return edge == node.next.end() || edge->first != byte ? nullptr : &nodes_[edge->second];
}

bool AddedTokenMatcher::next(std::string_view text, std::size_t from, Match& match) const {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[byte(begin)]) continue;
    bool found = false;
    const Node* node = &nodes_[0];
    for (std::size_t at = begin; at < text.size() && (node = descend(*node, byte(at))); ++at) {
      if (node->token < 0) continue;
      match = {begin, at + 1, static_cast<std::size_t>(node->token)};
      found = true;
    }
    if (found) return true;
  }
  return false;
}

std::pair<std::size_t, std::size_t> AddedTokenMatcher::extent(std::string_view text, const Match& match,
                                                              std::size_t done) const {
  const Flags& flags = tokens_[match.token];
  auto [begin, end, token] = match;
  if (flags.single_word) {
    const bool word_before = begin > 0 && is_word_character(utf8_at(text, utf8_before(text, begin)).code);
    const bool word_after = end < text.size() && is_word_character(utf8_at(text, end).code);
    if (word_before || word_after) return {begin, begin};
  }
  if (flags.lstrip) {
    while (begin > done) {
      const std::size_t before = utf8_before(text, begin);
      if (!is_white_space(utf8_at(text, before).code)) break;
      begin = before;
    }
  }
  if (flags.rstrip) {
    while (end < text.size() && is_white_space(utf8_at(text, end).code)) end += utf8_at(text, end).length;
  }
  return {begin, end};
}

AddedToken AddedToken::read(const Field& field, std::optional<bool> special) {
  const bool is_special = special.value_or(field.flag("special", false));
  return {field.at("content").text(),
          -1,
          is_special,
          field.flag("single_word", false),
          field.flag("lstrip", false),
          field.flag("rstrip", false),
          field.flag("normalized", !is_special)};
}

bool AddedToken::has_flags_of(const AddedToken& other) const {
  const auto flags = [](const AddedToken& token) {
    return std::tuple(token.special, token.single_word, token.lstrip, token.rstrip, token.normalized);
  };
  return flags(*this) == flags(other);
}

std::vector<AddedToken> read_added_tokens(const Field& added, const Bpe& bpe) {
  std::vector<AddedToken> tokens;
  for (const Field& field : added.elements()) {
    AddedToken token = AddedToken::read(field, std::nullopt);
    const TokenId declared = field.at("id").token_id();
    if (token.content.empty()) continue;
    const TokenId known = bpe.find(token.content);
    token.id = known >= 0 ? known : declared;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const std::vector<AddedToken>& declared, const Bpe& bpe,
                         const Normalizer& normalizer)
    : tokens_(std::move(tokens)) {
  for (const AddedToken& token : tokens_) size_ = std::max(size_, token.id + 1);
  for (const AddedToken& token : declared) declare(token, bpe);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    by_id_.emplace(token.id, i);
    by_content_.emplace(token.content, i);
    if (token.special && !token.content.empty()) special_.add(token.content, token);
    const std::string looked_for = token.normalized ? normalizer.apply(token.content) : token.content;
    if (!looked_for.empty()) (token.normalized ? normalized_ : raw_).add(looked_for, token);
  }
}

void AddedTokens::declare(AddedToken token, const Bpe& bpe) {
  for (AddedToken& same : tokens_) {
    if (same.content != token.content) continue;
    token.id = same.id;
    token.special |= same.special;  // what was special once stays hidden, as in the reference
    same = std::move(token);
    return;
  }
  const TokenId known = bpe.find(token.content);
  token.id = known >= 0 ? known : std::max(size_, bpe.size());
  size_ = std::max(size_, token.id + 1);
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::find(TokenId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto it = by_content_.find(std::string(content));
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

}  // namespace hayloft::runtime
