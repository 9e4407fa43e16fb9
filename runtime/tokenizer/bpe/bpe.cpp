#include "runtime/tokenizer/bpe/bpe.h"

#include <algorithm>

#include "runtime/tokenizer/bpe/bytes.h"
#include "runtime/tokenizer/unicode.h"

namespace hayloft::runtime {
namespace {

// Below this many symbols looking for segments costs more than it saves.
constexpr std::size_t kSegmentFrom = 64;

}  // namespace

TokenId Bpe::find(std::string_view text) const {
  return ids_.find(text);
}

const std::string* Bpe::text(TokenId id) const {
  if (id < 0 || id >= size()) return nullptr;
  const std::string& text = texts_[static_cast<std::size_t>(id)];
  return text.empty() ? nullptr : &text;
}

TokenId Bpe::symbol(char32_t code, std::string_view character, bool first, bool last) const {
  if ((first || prefix_.empty()) && (!last || suffix_.empty())) {
    return code < characters_.size() ? characters_[code] : find(character);
  }
  std::string decorated = first ? std::string() : prefix_;
  decorated += character;
  if (last) decorated += suffix_;
  return find(decorated);
}

bool Bpe::append_byte_tokens(std::string_view character, std::vector<TokenId>& symbols) const {
  const auto token = [&](char byte) { return bytes_[static_cast<std::uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char byte) { return token(byte) < 0; })) return false;
  for (const char byte : character) symbols.push_back(token(byte));
  return true;
}

// Text that is neither in the vocabulary nor spelled in byte tokens becomes the unknown token, runs of it one token if
// the model fuses them, or is dropped where there is none. An unknown token is held back until a known symbol follows,
// past byte tokens even: so does the reference.
void Bpe::append_symbols(std::string_view word, std::vector<TokenId>& symbols) const {
  std::size_t unknown = 0;
  const auto flush = [&] {
    if (unknown > 0) symbols.push_back(unknown_);
    unknown = 0;
  };
  for (std::size_t at = 0; at < word.size();) {
    const Utf8Char next = utf8_at(word, at);
    const std::string_view character = word.substr(at, next.length);
    const bool first = at == 0;
    at += next.length;
    const TokenId known = symbol(next.code, character, first, at == word.size());
    if (known >= 0) {
      flush();
      symbols.push_back(known);
    } else if (byte_fallback_ && append_byte_tokens(character, symbols)) {
      continue;
    } else if (unknown_ >= 0) {
      if (!fuse_unknown_) flush();
      ++unknown;
    }
  }
  flush();
}

void Bpe::Encoder::append_merged(const TokenId* begin, const TokenId* end, std::vector<TokenId>& out) {
  merged_.assign(begin, end);
  merger_.merge(merged_);
  out.insert(out.end(), merged_.begin(), merged_.end());
}

void Bpe::Encoder::encode_uncached(std::string_view word, std::vector<TokenId>& out) {
  symbols_.clear();
  const auto letter = [&](char byte) { return bpe_.letters_[static_cast<std::uint8_t>(byte)]; };
  if (!bpe_.byte_level_) {
    if (const TokenId whole = bpe_.ignore_merges_ ? bpe_.find(word) : -1; whole >= 0) return out.push_back(whole);
    bpe_.append_symbols(word, symbols_);
  } else {
    if (bpe_.ignore_merges_) {
      const TokenId whole = bpe_.find(to_byte_letters(word));
      if (whole >= 0) return out.push_back(whole);
    }
    for (const char byte : word) symbols_.push_back(letter(byte));
    if (std::find(symbols_.begin(), symbols_.end(), -1) != symbols_.end()) {
      symbols_.clear();
      bpe_.append_symbols(to_byte_letters(word), symbols_);
    }
  }

  const TokenId* const end = symbols_.data() + symbols_.size();
  if (symbols_.size() < kSegmentFrom || !bpe_.segmentable_) return append_merged(symbols_.data(), end, out);
  for (const TokenId *begin = symbols_.data(), *at = begin; begin < end; begin = at) {
    do ++at;
    while (at < end && bpe_.joints_.find(at[-1], *at));
    const auto count = static_cast<std::size_t>(at - begin);
    const std::string_view key(reinterpret_cast<const char*>(begin), count * sizeof *begin);
    if (segments_.lookup(key, out)) continue;
    const std::size_t before = out.size();
    append_merged(begin, at, out);
    segments_.remember(key, out.data() + before, out.size() - before);
  }
}

void Bpe::Encoder::encode(std::string_view word, std::vector<TokenId>& out) {
  if (words_.lookup(word, out)) return;
  const std::size_t before = out.size();
  encode_uncached(word, out);
  words_.remember(word, out.data() + before, out.size() - before);
}

}  // namespace hayloft::runtime
