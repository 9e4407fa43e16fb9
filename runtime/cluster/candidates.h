#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/host/threads.h"
#include "runtime/cluster/communicator.h"

namespace hayloft::runtime::cluster {

// Positions that a search has found, list by list, and what the query heads that share a list gave them.
struct Candidates {
  Candidates(int lists_, int heads_, int k_)
      : lists(lists_),
        heads(heads_),
        k(k_),
        positions(static_cast<std::size_t>(lists_) * static_cast<std::size_t>(k_), -1),
        logits(positions.size() * static_cast<std::size_t>(heads_)) {}

  // What a rank gives to the others.
  static std::uint64_t bytes(int lists, int heads, int k) {
    return static_cast<std::uint64_t>(lists) * static_cast<std::uint64_t>(k) *
           (sizeof(std::int32_t) + static_cast<std::uint64_t>(heads) * sizeof(float));
  }

  int lists;
  int heads;                            // that share a list
  int k;                                // positions of a list, at most
  std::vector<std::int32_t> positions;  // [lists][k], whole ones, ascending; -1 behind the last
  std::vector<float> logits;            // [lists][heads][k]
};

// What a list ranks by, of the logits that its query heads gave a position.
using Score = std::function<float(int list, std::span<const float> logits)>;

// Of the candidates of all ranks the k with the largest scores, ties to the smaller position, those with NaN last: what
// one search over all of their positions finds, where each rank's own are the best of its positions by the same score.
// Together there must be k of each list. One all-gather, with which `note`, as long on every rank, comes to all:
// `notes` [ranks][note.size()], which scores may be made of.
Candidates best_of_all(Communicator& ranks, const Candidates& own, const Score& score, const offload::Threads& threads,
                       std::span<const float> note = {}, std::vector<float>* notes = nullptr);

}  // namespace hayloft::runtime::cluster
