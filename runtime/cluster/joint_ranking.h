#pragma once

#include <functional>
#include <vector>

#include "offload/host/threads.h"
#include "runtime/cluster/candidates.h"
#include "runtime/peers/communicator.h"

namespace hayloft::runtime::cluster {

// (max, sum) of each query head over positions.
struct Softmaxes {
  explicit Softmaxes(int query_heads);

  // Log-sum-exp, the same to the bit on every rank.
  void add(std::size_t head, float other_max, float other_sum);

  std::vector<float> max;  // [Hq]
  std::vector<float> sum;  // [Hq]
};

// Makes of the best positions that each rank has found the best of all. Every rank has one, of the same shape, and
// calls the same members in the same order. Not thread-safe.
class JointRanking {
 public:
  enum class Rule : std::uint8_t { sum, softmax };  // of what the query heads that share a list gave a position

  // lists * heads query heads. Communicator and threads must outlive it. Members throw what the communicator does when
  // a rank is lost.
  JointRanking(Communicator& ranks, const offload::Threads& threads, int lists, int heads, int k, Rule rule);

  // This rank's own, to be filled before give(), which makes them those of all ranks: `all` over every position that
  // was searched and attended, `attended` over those that are attended whatever they score.
  Softmaxes all;
  Softmaxes attended;

  // Gives the own k best of each list to all, with the softmaxes where that is asked, and takes the best of what all
  // give; whether nothing that counts was left out. Rule::softmax needs them. One all-gather.
  bool give(const Candidates& own, bool with_softmaxes);

  // Returns what this rank ranks among its best only by the softmaxes over all ranks, as far as it counts: `now` are
  // its k best by these, `given` what it gave. Few positions a message, which all ranks give to all, until nobody has
  // more.
  void add_left_out(const Candidates& given, const Candidates& now);

  const Candidates& best() const { return best_; }

  // The share of the softmax that lies on what is attended, best() and `attended`, [Hq].
  std::vector<float> alpha() const;

 private:
  bool ranks_by_softmax() const { return rule_ == Rule::softmax; }
  std::vector<float> sums() const;
  void take_sums(const GatheredCandidates& gathered);
  bool none_left_out(const GatheredCandidates& gathered) const;
  float least_that_counts(int list) const;
  std::vector<std::vector<int>> left_out(const Candidates& given, const Candidates& now) const;
  Score by_all() const;
  float score(int list, std::span<const float> logits, std::span<const float> max, std::span<const float> sum) const;

  Communicator& ranks_;
  const offload::Threads& threads_;
  int lists_;
  int heads_;
  Rule rule_;
  Candidates best_;
};

}  // namespace hayloft::runtime::cluster
