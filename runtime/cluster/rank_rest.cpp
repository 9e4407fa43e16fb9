#include "runtime/cluster/rank_rest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "gpu/attention_state.h"
#include "runtime/attention/lanes.h"
#include "runtime/attention/logit_lines.h"
#include "runtime/attention/rest_estimate.h"
#include "runtime/cluster/attend_part.h"
#include "runtime/cluster/candidates.h"

namespace hayloft::runtime::cluster {
namespace {

using Draw = index::RestMasses::Draw;

// The values of all ranks, [ranks][n].
template <class T>
std::vector<T> gathered_from(Communicator& ranks, Traffic kind, const std::vector<T>& own) {
  std::vector<T> all(own.size() * static_cast<std::size_t>(ranks.ranks()));
  ranks.all_gather(kind, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  return all;
}

// One step, on one rank.
class RestOfRanks {
 public:
  explicit RestOfRanks(const RankRest& of)
      : ranks_(of.ranks),
        step_(of.step),
        at_(of.step.at),
        plan_(of.plan),
        part_(of.part),
        ranking_(of.ranking),
        rest_(of.rest),
        ready_(of.step, of.ranking),
        heads_(at_.query_heads / plan_.lists) {}

  std::vector<float> attend(const gpu::Attended& what, const std::vector<std::int32_t>& taken,
                            const std::function<std::vector<float>()>& mean_value, std::vector<float>& out) {
    ExactPart exact = gather_exact(what);
    const bool draws = rest_.kind == Rest::Kind::draw;
    references_ = draws ? draw_references(exact.log_sums) : exact.log_sums;
    std::vector<float> shares(static_cast<std::size_t>(at_.query_heads), 1.0f);
    if (step_.estimate != nullptr) step_.estimate->error.assign(shares.size(), 0.0f);
    if (!draws) {
      const index::RestMasses masses = gather_sums(own_masses(taken, 0));
      add_mean(step_, masses, lines_, mean_value(), exact.out.data(), shares.data(), step_.estimate);
    } else if (plan_.drawn > 0) {
      std::vector<Draw> drawn = gather_draws(own_masses(taken, plan_.drawn + 1));
      for (int list = 0; list < plan_.lists; ++list) {
        refer_to(exact.log_sums, references_, list * heads_, heads_, drawn[static_cast<std::size_t>(list)]);
      }
      add_values(drawn, needs_lines(ranking_) ? std::vector<float>() : mean_value(), exact.out, shares);
    }
    if (step_.estimate != nullptr) step_.estimate->attended = shares;
    out = std::move(exact.out);
    return shares;
  }

 private:
  // The sums over the values drawn of one query head, of which each rank adds up its own.
  struct ValueSums {
    float* weighted;  // [d] of w V
    float* spread;    // [d] of c (V - o)
    float* squares;   // of c |V - o|^2
  };
  // w and c of each value drawn, for one query head: its weight, and that of its square in the variance.
  struct Weights {
    std::vector<float> w;
    std::vector<double> c;
    float rest = 0;  // sum of w
    double all_c = 0;
  };

  // Logits of what lines are fitted over, as far as it lies here.
  LineLogits own_logits(const std::vector<std::int32_t>& sampled) const {
    if (sampled.empty()) return {};
    std::vector<std::int32_t> own;
    for (const std::int32_t position : sampled) {
      own.push_back(part_.holds(position) ? static_cast<std::int32_t>(part_.own(position)) : -1);
    }
    return line_logits(step_, line_sample(step_, part_.cache().store, own), ready_);
  }

  // Attention to all ranks' parts, merged in their order, and the lines, over the sample wherever it lies.
  ExactPart gather_exact(const gpu::Attended& what) {
    const AttentionParts mine = attend_part(at_, part_, step_.q, what);
    std::vector<float> packet = mine.values;
    const std::vector<std::int32_t> sampled =
        needs_lines(ranking_) ? line_positions(plan_.limit) : std::vector<std::int32_t>();
    LineLogits logits = own_logits(sampled);
    packet.insert(packet.end(), logits.approximate.begin(), logits.approximate.end());
    packet.insert(packet.end(), logits.exact.begin(), logits.exact.end());
    std::vector<float> all = gathered_from(ranks_, Traffic::attention, packet);
    const std::size_t size = packet.size();
    const std::size_t states = mine.values.size();
    for (std::size_t i = 0; i < logits.exact.size(); ++i) {
      const std::int64_t block = sampled[i % sampled.size()] / at_.cache.store.layout->block_tokens;
      const float* const theirs = all.data() + static_cast<std::size_t>(at_.cache.shard.owner(block)) * size + states;
      logits.approximate[i] = theirs[i];
      logits.exact[i] = theirs[logits.approximate.size() + i];
    }
    lines_ = logit_lines(logits, at_.query_heads);

    const int d = at_.head_dim();
    std::vector<float> merged(states);
    const auto queries = static_cast<std::size_t>(at_.query_heads);
    for (std::size_t h = 0; h < queries; ++h) {
      gpu::AttentionState state{merged.data() + h * static_cast<std::size_t>(d)};
      for (int rank = 0; rank < ranks_.ranks(); ++rank) {
        float* const weighted = all.data() + static_cast<std::size_t>(rank) * size;
        const float* const max = weighted + at_.query_elements();
        gpu::merge_states(state, {weighted + h * static_cast<std::size_t>(d), max[h], max[queries + h]}, d);
      }
      merged[static_cast<std::size_t>(at_.query_elements()) + h] = state.max;
      merged[static_cast<std::size_t>(at_.query_elements()) + queries + h] = state.sum;
    }
    return exact_part(std::move(merged), at_.query_heads, d);
  }

  // Over the own positions, with the best `count` of each list, as own ones.
  index::RestMasses own_masses(const std::vector<std::int32_t>& taken, int count) const {
    std::vector<std::vector<std::int32_t>> own(static_cast<std::size_t>(plan_.lists));
    std::size_t most = 0;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      std::vector<std::int32_t>& list = own[i / static_cast<std::size_t>(plan_.k)];
      if (part_.holds(taken[i])) list.push_back(static_cast<std::int32_t>(part_.own(taken[i])));
      most = std::max(most, list.size());
    }
    std::vector<std::int32_t> lists;
    for (std::vector<std::int32_t>& list : own) {
      list.resize(most, std::numeric_limits<std::int32_t>::max());  // behind every position
      lists.insert(lists.end(), list.begin(), list.end());
    }
    index::RestSearch search;
    search.scores = ready_.search(part_.own(plan_.limit), static_cast<int>(most));
    search.lines = lines_.data();
    search.log_sums = references_.data();
    search.taken = lists.data();
    search.count = count;
    search.key = key();
    search.shard = at_.cache.shard;
    search.block_tokens = at_.cache.store.layout->block_tokens;
    const bool derived = ranking_.source == Ranking::Source::derived;
    return index::rest_masses(derived ? ranking_.columns : part_.cache().store, search, at_.backend.threads());
  }

  index::RestMasses gather_sums(const index::RestMasses& own) const {
    std::vector<double> packet = own.sum;
    packet.insert(packet.end(), own.squares.begin(), own.squares.end());
    const std::vector<double> all = gathered_from(ranks_, Traffic::candidates, packet);
    index::RestMasses masses;
    masses.sum.resize(own.sum.size());
    masses.squares.resize(own.sum.size());
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks_.ranks()); ++rank) {
      const double* const theirs = all.data() + rank * packet.size();
      for (std::size_t h = 0; h < own.sum.size(); ++h) {
        masses.sum[h] += theirs[h];
        masses.squares[h] += theirs[own.sum.size() + h];
      }
    }
    return masses;
  }

  // The draw of each list: of all ranks' best the best, whose worst is the threshold. Beside the masses goes what they
  // are ranked by.
  std::vector<Draw> gather_draws(const index::RestMasses& own) const {
    const int wanted = plan_.drawn + 1;
    Candidates mine(plan_.lists, heads_ + 1, wanted);
    for (int list = 0; list < plan_.lists; ++list) {
      const Draw& draw = own.draws[static_cast<std::size_t>(list)];
      const auto n = static_cast<int>(draw.positions.size());
      for (int i = 0; i < n; ++i) {
        const auto position = static_cast<std::int32_t>(part_.whole(draw.positions[static_cast<std::size_t>(i)]));
        float p = 0;
        for (int h = 0; h < heads_; ++h) {
          const float mass = draw.masses[static_cast<std::size_t>(h * n + i)];
          mine.logits[mine.index(list * (heads_ + 1) + h, i)] = mass;
          p = h == 0 ? mass : p + mass;
        }
        mine.positions[mine.index(list, i)] = position;
        mine.logits[mine.index(list * (heads_ + 1) + heads_, i)] = p / index::drawn_number(key(), position);
      }
    }
    const GatheredCandidates all(ranks_, mine);
    const auto by_rank = [](int, std::span<const float> numbers) { return numbers.back(); };
    const Candidates best = all.best(wanted, by_rank, at_.backend.threads());
    std::vector<Draw> draws(static_cast<std::size_t>(plan_.lists));
    for (int list = 0; list < plan_.lists; ++list) draws[static_cast<std::size_t>(list)] = draw_of(best, list);
    return draws;
  }

  Draw draw_of(const Candidates& best, int list) const {
    int found = 0;
    while (found < best.k && best.position(list, found) >= 0) ++found;
    int worst = -1;  // of one more than are drawn: the threshold, and left out
    for (int i = 0; i < found && found == best.k; ++i) {
      if (worst < 0 || best.logit(list, heads_, i) <= best.logit(list, heads_, worst)) worst = i;
    }
    const float threshold = worst < 0 ? 0 : best.logit(list, heads_, worst);
    Draw draw;
    for (int i = 0; i < found; ++i) {
      if (i == worst) continue;
      float p = best.logit(list, 0, i);
      for (int h = 1; h < heads_; ++h) p += best.logit(list, h, i);
      draw.positions.push_back(best.position(list, i));
      draw.chances.push_back(p >= threshold ? 1 : p / threshold);
    }
    for (int h = 0; h < heads_; ++h) {
      for (int i = 0; i < found; ++i) {
        if (i != worst) draw.masses.push_back(best.logit(list, h, i));
      }
    }
    return draw;
  }

  Weights weights_of(const Draw& draw, int head) const {
    const std::size_t n = draw.positions.size();
    const float* const masses = draw.masses.data() + static_cast<std::size_t>(head % heads_) * n;
    Weights of;
    for (std::size_t i = 0; i < n; ++i) {
      of.w.push_back(masses[i] / draw.chances[i]);
      of.rest += of.w.back();
    }
    const double spread = std::exp(std::min(double{lines_[static_cast<std::size_t>(head)].residual}, 1.5)) - 1;
    for (std::size_t i = 0; i < n; ++i) {
      const double chance = draw.chances[i];
      const double weight = double{of.w[i]} / (1 + double{of.rest});
      of.c.push_back(weight * weight * (1 - chance + spread * chance));
      of.all_c += of.c.back();
    }
    return of;
  }

  // Takes what is attended exactly to the estimate, by the values drawn, of which every rank reads its own.
  // means: as add_drawn() of one machine has them.
  void add_values(const std::vector<Draw>& draws, const std::vector<float>& means, std::vector<float>& out,
                  std::vector<float>& shares) {
    const auto d = static_cast<std::size_t>(at_.head_dim());
    const auto heads = static_cast<std::size_t>(at_.query_heads);
    const std::size_t each = 2 * d + 1;
    std::vector<Weights> weights(heads);
    std::vector<float> sums(heads * each);
    at_.backend.threads().parallel_for(plan_.lists, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> value(d);
      std::vector<f16> space(2 * d);
      for (std::int64_t list = begin; list < end; ++list) {
        const Draw& draw = draws[static_cast<std::size_t>(list)];
        const auto first = static_cast<std::size_t>(list * heads_);
        for (int h = 0; h < heads_; ++h) {
          weights[first + static_cast<std::size_t>(h)] = weights_of(draw, static_cast<int>(first) + h);
        }
        for (std::size_t i = 0; i < draw.positions.size(); ++i) {
          if (!part_.holds(draw.positions[i])) continue;
          const std::int64_t own = part_.own(draw.positions[i]);
          widen_lanes(part_.cache().store.row(static_cast<int>(first) / at_.group(), own, space.data()) + d, d,
                      value.data());
          for (std::size_t h = first; h < first + static_cast<std::size_t>(heads_); ++h) {
            add_value(value.data(), out.data() + h * d, weights[h].w[i], weights[h].c[i], sums_of(sums, h));
          }
        }
      }
    });
    const std::vector<float> all = gathered_from(ranks_, Traffic::attention, sums);
    std::ranges::fill(sums, 0.0f);
    for (std::size_t i = 0; i < all.size(); ++i) sums[i % sums.size()] += all[i];
    for (std::size_t h = 0; h < heads; ++h) {
      const float* const mean = means.empty() ? nullptr : means.data() + h * d;
      finish_head(h, weights[h], sums_of(sums, h), mean, out.data() + h * d, shares);
    }
  }

  ValueSums sums_of(std::vector<float>& sums, std::size_t head) const {
    const auto d = static_cast<std::size_t>(at_.head_dim());
    float* const first = sums.data() + head * (2 * d + 1);
    return {first, first + d, first + 2 * d};
  }

  void add_value(const float* value, const float* centre, float w, double c, const ValueSums& sums) const {
    double square = 0;
    for (int i = 0; i < at_.head_dim(); ++i) {
      const double far = double{value[i]} - double{centre[i]};
      sums.weighted[i] += w * value[i];
      sums.spread[i] += static_cast<float>(c * far);
      square += far * far;
    }
    *sums.squares += static_cast<float>(c * square);
  }

  // Takes the draw's mean u towards the mean of V, and returns what is kept of it: its variance is that of the output
  // but for the share, sum of c |V - u|^2.
  float take_towards(const float* mean, const Weights& weights, const ValueSums& sums, const float* exact) const {
    double moved = 0;   // |u - o|^2
    double across = 0;  // (u - o) . sum of c (V - o)
    double gap = 0;     // |u - mean|^2
    for (int i = 0; i < at_.head_dim(); ++i) {
      const double u = double{sums.weighted[i]} / double{weights.rest};
      const double shift = u - double{exact[i]};
      moved += shift * shift;
      across += shift * double{sums.spread[i]};
      gap += (u - double{mean[i]}) * (u - double{mean[i]});
    }
    const double share = double{weights.rest} / (1 + double{weights.rest});
    const double variance = std::max(0.0, double{*sums.squares} - 2 * across + moved * weights.all_c);
    const float kept = kept_of_drawn(variance / (share * share), std::sqrt(gap));
    for (int i = 0; i < at_.head_dim(); ++i) {
      const float u = sums.weighted[i] / weights.rest;
      sums.weighted[i] = weights.rest * (mean[i] + kept * (u - mean[i]));
    }
    return kept;
  }

  // y = (o + sum of w V) / (1 + sum of w); of its error the variance of what was drawn, sum of c |V - y|^2, and of the
  // line.
  void finish_head(std::size_t head, const Weights& weights, const ValueSums& sums, const float* mean, float* y,
                   std::vector<float>& shares) {
    float* const error = step_.estimate == nullptr ? nullptr : step_.estimate->error.data() + head;
    const float rest = weights.rest;
    if (!std::isfinite(rest)) {  // what is attended exactly stays, and nothing is known of the rest
      if (error != nullptr) *error = std::numeric_limits<float>::infinity();
      return;
    }
    const float kept = mean == nullptr || rest == 0 ? 1 : take_towards(mean, weights, sums, y);
    double moved = 0;    // |y - o|^2
    double across = 0;   // (y - o) . sum of c (V - o)
    double length = 0;   // |y|^2
    double between = 0;  // |mean of the values drawn - o|^2
    for (int i = 0; i < at_.head_dim(); ++i) {
      const float exact = y[i];
      y[i] = (exact + sums.weighted[i]) / (1 + rest);
      const double shift = double{y[i]} - double{exact};
      const double gap = rest == 0 ? 0 : double{sums.weighted[i]} / double{rest} - double{exact};
      moved += shift * shift;
      across += shift * double{sums.spread[i]};
      length += double{y[i]} * double{y[i]};
      between += gap * gap;
    }
    shares[head] = 1 / (1 + rest);
    if (error == nullptr || rest == 0) return;
    const double variance = std::max(0.0, double{*sums.squares} - 2 * across + moved * weights.all_c);
    *error = drawn_error(mean == nullptr, variance, kept, rest, std::sqrt(between), std::sqrt(length));
  }

  std::uint64_t key() const { return draw_key(rest_.seed, at_.cache.layer, plan_.tokens); }

  Communicator& ranks_;
  const Step& step_;
  const LayerStep& at_;
  const SelectionPlan& plan_;
  const Part& part_;
  const Ranking& ranking_;
  const Rest rest_;
  const HostRanking ready_;
  int heads_;  // of a list
  std::vector<index::LogitLine> lines_;
  std::vector<float> references_;
};

}  // namespace

std::vector<float> RankRest::attend(const gpu::Attended& what, const std::vector<std::int32_t>& taken,
                                    const std::function<std::vector<float>()>& mean_value,
                                    std::vector<float>& out) const {
  return RestOfRanks(*this).attend(what, taken, mean_value, out);
}

RestMessages rest_messages(const SelectionPlan& plan, int query_heads, int head_dim, bool lines, Rest rest) {
  const auto queries = static_cast<std::uint64_t>(query_heads);
  RestMessages messages;
  if (lines) messages.bytes += 2 * queries * line_positions(plan.limit).size() * sizeof(float);
  if (rest.kind != Rest::Kind::draw) {
    messages.gathered += 1;
    messages.bytes += 2 * queries * sizeof(double);
  } else if (plan.drawn > 0) {
    messages.gathered += 2;
    messages.bytes += Candidates::bytes(plan.lists, query_heads / plan.lists + 1, plan.drawn + 1);
    messages.bytes += queries * (2 * static_cast<std::uint64_t>(head_dim) + 1) * sizeof(float);
  }
  return messages;
}

}  // namespace hayloft::runtime::cluster
