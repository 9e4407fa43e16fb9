#include "runtime/tokenizer/bpe/cache.h"

#include <cstring>

namespace hayloft::runtime {
namespace {

constexpr std::size_t kFirstSlots = 256;    // a prompt of some lines should not pay for a book
constexpr std::size_t kMaxSlots = 1 << 18;  // 6 MiB of slots
constexpr std::size_t kMaxWordBytes = 256;

// Multiply and fold, eight bytes at a time.
std::uint64_t hash_word(std::string_view word) {
  constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15;
  const auto mix = [](std::uint64_t value) {
    value *= kFactor;
    return value ^ value >> 32;
  };
  std::uint64_t hash = word.size(), piece;
  for (; word.size() >= sizeof piece; word.remove_prefix(sizeof piece)) {
    std::memcpy(&piece, word.data(), sizeof piece);
    hash = mix(hash ^ piece);
  }
  piece = 0;
  std::memcpy(&piece, word.data(), word.size());
  return mix(mix(hash ^ piece));
}

}  // namespace

WordCache::WordCache() : entries_(kFirstSlots) {}

std::size_t WordCache::slot(std::string_view word, std::uint64_t hash) const {
  const std::size_t mask = entries_.size() - 1;
  std::size_t at = hash & mask;
  for (; entries_[at].count != 0; at = (at + 1) & mask) {
    const Entry& entry = entries_[at];
    if (entry.hash == hash && std::string_view(keys_).substr(entry.key, entry.key_bytes) == word) break;
  }
  return at;
}

bool WordCache::lookup(std::string_view word, std::vector<TokenId>& out) const {
  if (word.size() > kMaxWordBytes) return false;
  const Entry& entry = entries_[slot(word, hash_word(word))];
  if (entry.count == 0) return false;
  const auto first = tokens_.begin() + entry.tokens;
  out.insert(out.end(), first, first + entry.count);
  return true;
}

void WordCache::remember(std::string_view word, const TokenId* tokens, std::size_t count) {
  if (count == 0 || count > kMaxWordBytes || word.size() > kMaxWordBytes) return;
  if (used_ * 2 >= entries_.size()) {
    if (entries_.size() == kMaxSlots) return;
    grow();
  }
  const std::uint64_t hash = hash_word(word);
  Entry& entry = entries_[slot(word, hash)];
  if (entry.count != 0) return;
  entry = {hash, static_cast<std::uint32_t>(keys_.size()), static_cast<std::uint32_t>(tokens_.size()),
           static_cast<std::uint16_t>(word.size()), static_cast<std::uint16_t>(count)};
  keys_.append(word);
  tokens_.insert(tokens_.end(), tokens, tokens + count);
  ++used_;
}

void WordCache::grow() {
  std::vector<Entry> old(entries_.size() * 4);
  old.swap(entries_);
  const std::size_t mask = entries_.size() - 1;
  for (const Entry& entry : old) {
    if (entry.count == 0) continue;
    std::size_t at = entry.hash & mask;
    while (entries_[at].count != 0) at = (at + 1) & mask;
    entries_[at] = entry;
  }
}

}  // namespace hayloft::runtime
