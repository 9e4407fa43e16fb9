#include "runtime/cluster/joint_ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "index/scan/softmax.h"
#include "runtime/cluster/same_exp.h"

namespace hayloft::runtime::cluster {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

Softmaxes::Softmaxes(int query_heads)
    : max(static_cast<std::size_t>(query_heads), -infinity), sum(static_cast<std::size_t>(query_heads)) {}

void Softmaxes::add(std::size_t head, float other_max, float other_sum) {
  const auto rescale = [](float from, float to) { return from == to ? 1.0f : same_exp(from - to); };
  const float merged = other_max > max[head] || std::isnan(other_max) ? other_max : max[head];
  sum[head] = sum[head] * rescale(max[head], merged) + other_sum * rescale(other_max, merged);
  max[head] = merged;
}

JointRanking::JointRanking(Communicator& ranks, const offload::Threads& threads, int lists, int heads, int k, Rule rule)
    : all(lists * heads),
      attended(lists * heads),
      ranks_(ranks),
      threads_(threads),
      lists_(lists),
      heads_(heads),
      rule_(heads > 1 ? rule : Rule::sum),
      best_(lists, heads, k) {}

bool JointRanking::give(const Candidates& own, bool with_softmaxes) {
  const GatheredCandidates gathered(ranks_, own, with_softmaxes ? sums() : std::vector<float>());
  if (with_softmaxes) take_sums(gathered);
  best_ = gathered.best(best_.k, by_all(), threads_);
  return !ranks_by_softmax() || best_.k == 0 || none_left_out(gathered);
}

// Returns whether nothing that ranks left out can be among the best. To what a rank left out its own softmaxes, summed
// over the heads, give no more than to the least of what it gave; the softmaxes over all ranks give that times the
// share of a head's softmax that lies with the rank, and hence no more than times the largest share of a head.
bool JointRanking::none_left_out(const GatheredCandidates& gathered) const {
  const auto group = static_cast<std::size_t>(heads_), heads = all.max.size();
  for (int list = 0; list < lists_; ++list) {
    if (best_.position(list, best_.k - 1) < 0) continue;  // all gave what they have
    const float enough = least_that_counts(list);
    const std::size_t first = static_cast<std::size_t>(list) * group;
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      if (!gathered.full(rank, list)) continue;
      const std::span<const float> max = gathered.note(rank).first(heads),
                                   sum = gathered.note(rank).subspan(heads, heads);
      float share = 0;
      for (std::size_t h = first; h < first + group; ++h) {
        share = std::max(share, sum[h] * same_exp(max[h] - all.max[h]) / all.sum[h]);
      }
      const float least =
          gathered.least(rank, list, [&](int of, std::span<const float> its) { return score(of, its, max, sum); });
      if (!(least * share < enough)) return false;
    }
  }
  return true;
}

// Returns the least score that counts: what scores less is not among the best, whatever rounding does to sums,
// exponentials and the searches' own.
float JointRanking::least_that_counts(int list) const {
  constexpr float rounding = 1e-4f;
  std::vector<float> logits(static_cast<std::size_t>(heads_));
  float least = infinity;
  for (int at = 0; at < best_.k; ++at) {
    for (int h = 0; h < heads_; ++h) logits[static_cast<std::size_t>(h)] = best_.logit(list, h, at);
    const float one = score(list, logits, all.max, all.sum);
    if (!(one >= least)) least = one;
  }
  return least * (1 - rounding);
}

void JointRanking::add_left_out(const Candidates& given, const Candidates& now) {
  const int at_a_time = left_out_at_a_time(best_.k, ranks_.ranks());
  std::vector<std::vector<int>> missing = left_out(given, now);
  for (bool more = true; more;) {
    Candidates some(lists_, heads_, at_a_time);
    float left = 0;  // whether there are more
    for (int list = 0; list < lists_; ++list) {
      std::vector<int>& places = missing[static_cast<std::size_t>(list)];
      const auto count = static_cast<int>(std::min<std::size_t>(places.size(), at_a_time));
      for (int i = 0; i < count; ++i) {
        const int at = places[static_cast<std::size_t>(i)];
        some.positions[some.index(list, i)] = now.position(list, at);
        for (int h = 0; h < heads_; ++h) some.logits[some.index(list * heads_ + h, i)] = now.logit(list, h, at);
      }
      places.erase(places.begin(), places.begin() + count);
      if (!places.empty()) left = 1;
    }
    const GatheredCandidates gathered(ranks_, some, std::span(&left, 1));
    best_ = gathered.best(best_.k, by_all(), threads_, &best_);
    more = false;
    for (int rank = 0; rank < ranks_.ranks(); ++rank) more = more || gathered.note(rank)[0] > 0;
  }
}

// Places in `now` of what counts and was not given, of each list.
std::vector<std::vector<int>> JointRanking::left_out(const Candidates& given, const Candidates& now) const {
  std::vector<std::vector<int>> missing(static_cast<std::size_t>(lists_));
  std::vector<float> logits(static_cast<std::size_t>(heads_));
  for (int list = 0; list < lists_; ++list) {
    const float enough = least_that_counts(list);
    const auto first = given.positions.begin() + static_cast<std::ptrdiff_t>(given.index(list, 0));
    const auto end = std::find(first, first + given.k, -1);
    for (int at = 0; at < now.k && now.position(list, at) >= 0; ++at) {
      for (int h = 0; h < heads_; ++h) logits[static_cast<std::size_t>(h)] = now.logit(list, h, at);
      const bool counts = !(score(list, logits, all.max, all.sum) < enough);
      if (counts && !std::binary_search(first, end, now.position(list, at))) {
        missing[static_cast<std::size_t>(list)].push_back(at);
      }
    }
  }
  return missing;
}

// Returns what this rank tells of the softmaxes: [Hq] of max and sum of `all`, then of `attended`.
std::vector<float> JointRanking::sums() const {
  std::vector<float> values;
  for (const std::vector<float>* part : {&all.max, &all.sum, &attended.max, &attended.sum}) {
    values.insert(values.end(), part->begin(), part->end());
  }
  return values;
}

void JointRanking::take_sums(const GatheredCandidates& gathered) {
  const std::size_t n = all.max.size();
  for (Softmaxes* softmax : {&all, &attended}) {  // in place: the search goes on from there
    std::ranges::fill(softmax->max, -infinity);
    std::ranges::fill(softmax->sum, 0.0f);
  }
  for (int rank = 0; rank < ranks_.ranks(); ++rank) {
    for (std::size_t h = 0; h < n; ++h) {
      const float* const own = gathered.note(rank).data() + h;
      all.add(h, own[0], own[n]);
      attended.add(h, own[2 * n], own[3 * n]);
    }
  }
}

Score JointRanking::by_all() const {
  return [this](int list, std::span<const float> logits) { return score(list, logits, all.max, all.sum); };
}

// By softmaxes (max, sum) [Hq] where they are what is ranked by.
float JointRanking::score(int list, std::span<const float> logits, std::span<const float> max,
                          std::span<const float> sum) const {
  if (heads_ == 1) return logits.front();
  float total = 0;
  for (std::size_t h = 0; h < logits.size(); ++h) {
    const std::size_t head = static_cast<std::size_t>(list) * logits.size() + h;
    total += ranks_by_softmax() ? same_exp(logits[h] - max[head]) / sum[head] : logits[h];
  }
  return total;
}

std::vector<float> JointRanking::alpha() const {
  std::vector<float> share(all.max.size());
  for (std::size_t h = 0; h < share.size(); ++h) {
    double mass = attended.sum[h] * index::rescale(attended.max[h], all.max[h]);
    const int list = static_cast<int>(h) / heads_;
    for (int at = 0; at < best_.k; ++at) {
      if (best_.position(list, at) < 0) continue;
      mass += std::exp(best_.logits[best_.index(static_cast<int>(h), at)] - all.max[h]);
    }
    share[h] = index::attended_share(mass, all.sum[h]);
  }
  return share;
}

}  // namespace hayloft::runtime::cluster
