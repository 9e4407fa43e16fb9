#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/host/threads.h"
#include "runtime/peers/communicator.h"

namespace hayloft::runtime::cluster {

// Positions that a search has found, list by list, and what the query heads that share a list gave them.
struct Candidates {
  Candidates(int lists_, int heads_, int k_)
      : lists(lists_),
        heads(heads_),
        k(k_),
        positions(static_cast<std::size_t>(lists_) * static_cast<std::size_t>(k_), -1),
        logits(positions.size() * static_cast<std::size_t>(heads_)) {}

  // Returns the bytes of what a rank gives to the others.
  static std::uint64_t bytes(int lists, int heads, int k) {
    return static_cast<std::uint64_t>(lists) * static_cast<std::uint64_t>(k) *
           (sizeof(std::int32_t) + static_cast<std::uint64_t>(heads) * sizeof(float));
  }

  std::int32_t position(int list, int at) const { return positions[index(list, at)]; }
  float logit(int list, int head, int at) const { return logits[index(list * heads + head, at)]; }
  std::size_t index(int row, int at) const {  // in rows of k
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(k) + static_cast<std::size_t>(at);
  }

  int lists;
  int heads;                            // that share a list
  int k;                                // positions of a list, at most
  std::vector<std::int32_t> positions;  // [lists][k], whole ones, ascending; -1 behind the last
  std::vector<float> logits;            // [lists][heads][k]
};

// Returns how many candidates of a list a rank gives in a further message, where its best k were not enough: half of
// its share of k. More are seldom missing, and then there is another one.
inline int left_out_at_a_time(int k, int ranks) {
  return std::max(8, k / (2 * ranks));
}

// The score that a list ranks by, of the logits that its query heads gave a position.
using Score = std::function<float(int list, std::span<const float> logits)>;

// The candidates that all ranks have found, on every one of them.
class GatheredCandidates {
 public:
  // One all-gather, with which `note`, as long on every rank, comes to all.
  GatheredCandidates(Communicator& ranks, const Candidates& own, std::span<const float> note = {});

  // [n] of that rank.
  std::span<const float> note(int rank) const;

  // The k with the largest scores, ties to the smaller position, those with NaN last: what one search over all of the
  // ranks' positions finds, where each rank's own are the best of its positions by the same score. `others`: take part
  // as well; none of them is among the gathered.
  Candidates best(int k, const Score& score, const offload::Threads& threads, const Candidates* others = nullptr) const;

  // Return whether a rank gave as many positions of a list as it could, so that it may have left some out; and the
  // least score of those it gave.
  bool full(int rank, int list) const { return position(rank, list, k_ - 1) >= 0; }
  float least(int rank, int list, const Score& score) const;

 private:
  std::size_t of(int rank) const { return static_cast<std::size_t>(rank) * size_; }
  std::int32_t position(int rank, int list, int at) const;
  float logit(int rank, int list, int head, int at) const;
  void take_logits(int rank, int list, int at, std::span<float> logits) const;  // of all heads

  int ranks_;
  int lists_;
  int heads_;
  int k_;
  std::size_t logits_;  // where these begin in what a rank gave, and its note
  std::size_t note_;
  std::size_t size_;
  // For each rank: positions [lists][k], then logits [lists][heads][k], then its note.
  std::vector<std::uint32_t> all_;
};

}  // namespace hayloft::runtime::cluster
