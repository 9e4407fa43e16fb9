#include "runtime/decode/lookup.h"

#include <algorithm>

namespace hayloft::runtime {
namespace {

constexpr int kTried = 64;                  // places of a run that are compared, the newest first
constexpr std::size_t kLeastHashes = 1024;  // a power of two, as every number of them

}  // namespace

void Lookup::read(std::span<const std::int32_t> tokens) {
  std::int64_t first = size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (runs_.front().newest.size() < tokens_.size()) {  // more hashes than tokens: all anew
    std::size_t hashes = kLeastHashes;
    while (hashes < tokens_.size()) hashes *= 2;
    for (Runs& runs : runs_) {
      runs.newest.assign(hashes, -1);
      runs.previous.clear();
      runs.previous.reserve(tokens_.size());
    }
    first = 0;
  }
  for (std::int64_t end = first; end < size(); ++end) add(end);
}

std::size_t Lookup::hash_of_run(std::int64_t end, int order) const {
  std::uint64_t hash = 0;
  for (std::int64_t i = end + 1 - order; i <= end; ++i) {
    hash = (hash ^ static_cast<std::uint32_t>(tokens_[static_cast<std::size_t>(i)])) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return static_cast<std::size_t>(hash) & (runs_.front().newest.size() - 1);
}

void Lookup::add(std::int64_t end) {
  for (std::size_t i = 0; i < orders.size(); ++i) {
    Runs& runs = runs_[i];
    runs.previous.push_back(-1);
    if (end + 1 < orders[i]) continue;
    std::int32_t& newest = runs.newest[hash_of_run(end, orders[i])];
    runs.previous.back() = newest;
    newest = static_cast<std::int32_t>(end);
  }
}

// Counts the tokens up to positions a and b, a < b, that agree.
int Lookup::agreement(std::int64_t a, std::int64_t b) const {
  int length = 0;
  while (length < longest && a - length >= 0 &&
         tokens_[static_cast<std::size_t>(a - length)] == tokens_[static_cast<std::size_t>(b - length)]) {
    ++length;
  }
  return length;
}

Lookup::Found Lookup::find() const {
  const std::int64_t end = size() - 1;
  for (std::size_t i = 0; i < orders.size(); ++i) {
    if (end + 1 < orders[i]) continue;
    Found found;
    std::int32_t at = runs_[i].previous[static_cast<std::size_t>(end)];
    for (int tried = 0; at >= 0 && tried < kTried && found.length < longest; ++tried) {
      const int length = agreement(at, end);
      if (length >= orders[i] && length > found.length) found = {at + 1, length};
      at = runs_[i].previous[static_cast<std::size_t>(at)];
    }
    if (found.length > 0) return found;
  }
  return {};
}

std::vector<std::int32_t> Lookup::copy(const Found& found, int count) const {
  std::vector<std::int32_t> copied;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = found.next + i;
    copied.push_back(at < size() ? tokens_[static_cast<std::size_t>(at)]
                                 : copied[static_cast<std::size_t>(at - size())]);
  }
  return copied;
}

}  // namespace hayloft::runtime
