#include "runtime/tokenizer/bpe/merges.h"

#include <algorithm>
#include <functional>

#include "offload/error.h"

namespace hayloft::runtime {

MergeTable::MergeTable() {
  resize(1 << 10);
}

MergeTable::Entry& MergeTable::entry(std::uint64_t key) {
  std::size_t at = slot(key);
  while (entries_[at].key != key && entries_[at].key != kNone) at = (at + 1) & mask_;
  return entries_[at];
}

void MergeTable::resize(std::size_t slots) {
  std::vector<Entry> old(slots);
  old.swap(entries_);
  mask_ = slots - 1;
  for (const Entry& kept : old) {
    if (kept.key != kNone) entry(kept.key) = kept;
  }
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  if ((used_ + 1) * 2 > entries_.size()) resize(entries_.size() * 2);
  const std::uint64_t key = pack(left, right);
  Entry& place = entry(key);
  if (place.key == kNone) ++used_;
  place = {key, merge};
}

void Merger::rank_pair(std::uint32_t at) {
  Symbol& symbol = symbols_[at];
  const auto* merge = symbol.next == kEnd ? nullptr : merges_.find(symbol.token, symbols_[symbol.next].token);
  symbol.rank = merge ? merge->rank : kNoMerge;
  if (!merge) return;
  symbol.joined = merge->joined;
  queue_.push_back(static_cast<std::uint64_t>(merge->rank) << 32 | at);
}

void Merger::merge(std::vector<TokenId>& word) {
  if (word.size() < 2) return;
  if (word.size() >= kEnd) fail("a word of {} characters is too long to tokenize", word.size());
  const auto size = static_cast<std::uint32_t>(word.size());
  symbols_.resize(size);
  queue_.clear();
  for (std::uint32_t at = 0; at < size; ++at) {
    symbols_[at] = {word[at], at - 1, at + 1 < size ? at + 1 : kEnd, kNoMerge, 0};  // 0 - 1 wraps to kEnd
  }
  for (std::uint32_t at = 0; at < size; ++at) rank_pair(at);
  std::make_heap(queue_.begin(), queue_.end(), std::greater<>());

  while (!queue_.empty()) {
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    const std::uint64_t top = queue_.back();
    queue_.pop_back();
    const auto at = static_cast<std::uint32_t>(top);
    Symbol& left = symbols_[at];
    if (left.rank != top >> 32) continue;  // the pair has changed since it was queued

    Symbol& right = symbols_[left.next];
    left.token = left.joined;
    left.next = right.next;
    right.rank = kNoMerge;
    if (left.next != kEnd) symbols_[left.next].previous = at;
    const auto queue_pair = [&](std::uint32_t position) {
      const std::size_t before = queue_.size();
      rank_pair(position);
      if (queue_.size() > before) std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
    };
    queue_pair(at);
    if (left.previous != kEnd) queue_pair(left.previous);
  }

  word.clear();
  for (std::uint32_t at = 0; at != kEnd; at = symbols_[at].next) word.push_back(symbols_[at].token);
}

}  // namespace hayloft::runtime
