#include "runtime/fidelity/attention_stats.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

// E[(x - mean)^4] / E[(x - mean)^2]^2 of the d components of a query; 0 where they are all the same.
double kurtosis(const float* q, int d) {
  double mean = 0;
  for (int i = 0; i < d; ++i) mean += q[i];
  mean /= d;
  double second = 0;
  double fourth = 0;
  for (int i = 0; i < d; ++i) {
    const double square = (q[i] - mean) * (q[i] - mean);
    second += square;
    fourth += square * square;
  }
  return second > 0 ? fourth * d / (second * second) : 0;
}

// Values in falling order, of which only as many are sorted as are asked for.
class Falling {
 public:
  explicit Falling(std::vector<float>& values) : values_(values) {}
  float at(std::size_t i) {
    if (i >= sorted_) sort_more();
    return values_[i];
  }

 private:
  void sort_more() {
    const std::size_t end = std::min(values_.size(), std::max<std::size_t>(1024, 8 * sorted_));
    const auto begin = values_.begin() + static_cast<std::ptrdiff_t>(sorted_);
    const auto middle = values_.begin() + static_cast<std::ptrdiff_t>(end);
    std::nth_element(begin, middle, values_.end(), std::greater<>());
    std::sort(begin, middle, std::greater<>());
    sorted_ = end;
  }

  std::vector<float>& values_;
  std::size_t sorted_ = 0;
};

// The softmax of one query head.
struct Distribution {
  double entropy = 0;
  double keys[3] = {};           // that hold LayerAttention::shares
  std::vector<double> top_mass;  // by the place of k in `ks`
};

// ks ascend.
Distribution distribution(std::span<const float> logits, float max, const std::vector<std::int64_t>& ks) {
  std::vector<float> weights(logits.begin(), logits.end());
  double sum = 0;
  double weighted = 0;
  for (float& weight : weights) {
    const float below = weight - max;
    weight = std::exp(below);
    sum += weight;
    weighted += double{weight} * below;
  }
  Distribution result;
  result.entropy = std::log(sum) - weighted / sum;
  Falling falling(weights);
  double held = 0;
  std::size_t share = 0;
  for (std::size_t n = 0; n < weights.size() && (share < 3 || result.top_mass.size() < ks.size()); ++n) {
    held += falling.at(n);
    const std::size_t count = n + 1;
    while (share < 3 && held >= LayerAttention::shares[share] * sum) result.keys[share++] = static_cast<double>(count);
    while (result.top_mass.size() < ks.size() &&
           count == std::min(static_cast<std::size_t>(ks[result.top_mass.size()]), weights.size())) {
      result.top_mass.push_back(held / sum);
    }
  }
  return result;
}

// The share of `now` that is in `before`; both ascend.
template <class T>
double share_in(std::span<const T> now, std::span<const T> before) {
  const auto common = std::count_if(
      now.begin(), now.end(), [&](const T& value) { return std::binary_search(before.begin(), before.end(), value); });
  return static_cast<double>(common) / static_cast<double>(now.size());
}

template <class T>
std::span<const T> list_of(const std::vector<T>& lists, int index, int count) {
  const std::size_t length = lists.size() / static_cast<std::size_t>(count);
  return std::span(lists).subspan(static_cast<std::size_t>(index) * length, length);
}

// The best `k` of each list, ascending: [lists][k].
std::vector<std::int64_t> best(const RankedPositions& ranking, std::int64_t k) {
  std::vector<std::int64_t> positions;
  for (int list = 0; list < ranking.lists; ++list) {
    const auto first = ranking.list(list).first(static_cast<std::size_t>(k));
    positions.insert(positions.end(), first.begin(), first.end());
    std::sort(positions.end() - k, positions.end());
  }
  return positions;
}

}  // namespace

AttentionStats::AttentionStats(const AttentionStatsOptions& options) : options_(options) {
  const bool bad_rank = std::any_of(options.ranks.begin(), options.ranks.end(), [](int r) { return r < 1; });
  const bool bad_k = std::any_of(options.ks.begin(), options.ks.end(), [](std::int64_t k) { return k < 1; });
  if (bad_rank || bad_k || options.ks.empty()) {
    fail("attention statistics: every r and k must be at least 1, and there must be a k");
  }
  std::sort(options_.ks.begin(), options_.ks.end());
}

bool AttentionStats::wants(int layer, std::int64_t position) {
  return measures(2 * layer, position);
}

// Counts steps by what of them comes in turn: a layer's attention, and its experts behind that.
bool AttentionStats::measures(int layer, std::int64_t position) {
  const bool same_step = position == last_position_ && layer > last_layer_;
  last_layer_ = layer;
  if (!same_step) {
    const bool goes_on = position == last_position_ + 1;
    steps_of_sequence_ = goes_on ? steps_of_sequence_ + 1 : 1;
    if (!goes_on) {
      last_.clear();
      kept_.clear();
      kept_experts_.clear();
    }
    last_position_ = position;
    if (steps_of_sequence_ <= options_.steps) ++report_.steps;
  }
  return steps_of_sequence_ <= options_.steps;
}

void AttentionStats::see(const Step& observed, const Method&) {
  const LayerStep& at = observed.at;
  const int d = at.head_dim();
  const std::vector<float> q = copy_to_host(at.backend, observed.q, at.query_elements(), at.stream);
  const HostTail tail(at.backend, at.cache, at.stream);
  const std::vector<float> sinks = sinks_on_host(at.backend, at.cache, at.query_heads, at.stream);
  const StepQuery step{at.cache.store, tail, q.data(), at.query_heads, sinks};
  const offload::Threads& threads = at.backend.threads();

  LayerAttention& layer = report_.layers[at.layer];
  report_.tokens = step.tokens();
  for (int h = 0; h < step.query_heads; ++h) layer.kurtosis.add(kurtosis(step.q + h * d, d));
  const RankedPositions exact =
      rank_positions(step, exact_scores(step), options_.ks.back(), index::SelectPer::kv_head, threads);
  add_distribution(step, exact, layer, threads);
  Chosen chosen = add_choices(step, exact, layer, threads);
  const auto before = last_.find(at.layer);
  if (before != last_.end()) add_repetition(before->second, chosen, step.kv_heads(), layer);
  add_held(chosen, d, at.layer);
  last_[at.layer] = std::move(chosen);
}

void AttentionStats::add_distribution(const StepQuery& step, const RankedPositions& exact, LayerAttention& layer,
                                      const offload::Threads& threads) const {
  const int g = step.group();
  const Scores scores = exact_scores(step);
  std::vector<Distribution> heads(static_cast<std::size_t>(g));
  for (int head = 0; head < step.kv_heads(); ++head) {
    const std::vector<float> logits = score_positions(step, scores, exact.tail, head, threads);
    threads.parallel_for(g, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t h = begin; h < end; ++h) {
        heads[static_cast<std::size_t>(h)] =
            distribution({logits.data() + h * step.tokens(), static_cast<std::size_t>(step.tokens())},
                         exact.max[static_cast<std::size_t>(head * g + h)], options_.ks);
      }
    });
    for (const Distribution& of : heads) {
      layer.entropy.add(of.entropy);
      for (int i = 0; i < 3; ++i) layer.keys[i].add(of.keys[i]);
      for (std::size_t i = 0; i < options_.ks.size(); ++i) layer.top_mass[options_.ks[i]].add(of.top_mass[i]);
    }
  }
}

AttentionStats::Chosen AttentionStats::add_choices(const StepQuery& step, const RankedPositions& exact,
                                                   LayerAttention& layer, const offload::Threads& threads) const {
  const int d = step.head_dim();
  std::vector<int> ranks = options_.ranks;
  if (ranks.empty()) ranks = {d / 8, d / 4, d / 2};
  Chosen chosen;
  for (const std::int64_t k : options_.ks) chosen.positions[k] = best(exact, std::min(k, exact.k));
  for (const int wanted : ranks) {
    const int rank = std::min(wanted, d);
    const Scores scores = sparq_scores(step, rank);
    const RankedPositions approximate = rank_positions(step, scores, exact.k, index::SelectPer::kv_head, threads);
    chosen.columns[rank] = scores.components;
    for (const std::int64_t k : options_.ks) {
      const std::vector<std::int64_t> found = best(approximate, std::min(k, exact.k));
      for (int head = 0; head < step.kv_heads(); ++head) {
        layer.agreement[{rank, k}].add(
            share_in(list_of(chosen.positions[k], head, step.kv_heads()), list_of(found, head, step.kv_heads())));
      }
    }
  }
  return chosen;
}

void AttentionStats::add_held(const Chosen& chosen, int head_dim, int layer) {
  constexpr int shares[] = {1, 2, 3, 4, 6};  // eighths of all columns
  for (const auto& [rank, columns] : chosen.columns) {
    const int kv_heads = static_cast<int>(columns.size()) / rank;
    for (const int share : shares) {
      const int slots = head_dim * share / 8;
      if (slots < 1) continue;
      for (int head = 0; head < kv_heads; ++head) {
        index::RunCache& kept = kept_.try_emplace({layer, rank, slots, head}, head_dim, slots).first->second;
        const int held = kept.read(list_of(columns, head, kv_heads));
        if (steps_of_sequence_ > LayerAttention::warm) {
          report_.layers[layer].columns_held[{rank, slots}].add(static_cast<double>(held) / rank);
        }
      }
    }
  }
}

void AttentionStats::see_experts(int layer, std::int64_t position, int of, std::span<const int> chosen) {
  measures(2 * layer + 1, position);
  LayerExperts& experts = report_.experts[layer];
  experts.count = of;
  for (const int share : {1, 2, 4, 6}) {  // eighths of all experts
    const int slots = of * share / 8;
    if (slots < 1) continue;
    const int held = kept_experts_.try_emplace({layer, slots}, of, slots).first->second.ask(chosen);
    if (steps_of_sequence_ <= LayerAttention::warm) continue;
    experts.held[slots].add(static_cast<double>(held) / static_cast<double>(chosen.size()));
  }
}

void AttentionStats::add_repetition(const Chosen& before, const Chosen& now, int kv_heads, LayerAttention& layer) {
  for (const auto& [rank, columns] : now.columns) {
    for (int head = 0; head < kv_heads; ++head) {
      layer.columns_again[rank].add(
          share_in(list_of(columns, head, kv_heads), list_of(before.columns.at(rank), head, kv_heads)));
    }
  }
  for (const auto& [k, positions] : now.positions) {
    for (int head = 0; head < kv_heads; ++head) {
      layer.positions_again[k].add(
          share_in(list_of(positions, head, kv_heads), list_of(before.positions.at(k), head, kv_heads)));
    }
  }
}

}  // namespace hayloft::runtime
