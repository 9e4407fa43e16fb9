#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "index/scan/columns/plane_weights.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/support/sparq_oracle.h"

// Selection on the device against the CPU backend, and both against sums in double.
namespace hayloft::testing {

using index::GroupRule;
using offload::ColumnFormat;

inline constexpr auto all_formats = offload::all_column_formats();

struct SelectCase {
  CacheShape cache;
  int group = 4;
  int rank = 8;
  int k = 20;
  std::int64_t limit = -1;  // of the store's tokens; -1: all
  GroupRule rule = GroupRule::softmax;
  SharedCache::Host host = SharedCache::Host::pinned;
  index::Temperature temperature = index::Temperature::coverage;
  int bits = 0;  // in place of the rank
  index::ComponentOrder order = index::ComponentOrder::q;

  gpu::SparqSelect args() const {
    gpu::SparqSelect args;
    args.rank = rank;
    args.bits = bits;
    args.order = order;
    args.k = k;
    args.limit = limit < 0 ? cache.stored : limit;
    args.rule = rule;
    args.temperature = temperature;
    return args;
  }
};

// The components of a KV head that are read, and how many planes of each. q f32 [group][d], spread f32 [d].
struct ChosenComponents {
  std::vector<int> components;
  std::vector<std::uint8_t> planes;

  ChosenComponents(const float* q, int group, int head_dim, const float* spread, const gpu::SparqSelect& args) {
    const int most = args.components(head_dim);
    planes.assign(static_cast<std::size_t>(most), offload::plane_count);
    if (args.bits == 0 && args.order == index::ComponentOrder::q) spread = nullptr;
    if (args.bits > 0) {
      components.resize(planes.size());
      index::plane_components(q, group, head_dim, spread, args.bits, components.data(), planes.data());
      while (planes.back() == 0) planes.pop_back();
      components.resize(planes.size());
    } else if (spread != nullptr) {
      components.resize(planes.size());
      index::sparq_components(q, group, head_dim, spread, most, components.data());
    } else {
      components = sparq_oracle_components(q, group, head_dim, most);
    }
  }
};

// SparQ's scores of one KV head (arXiv 2312.04985, appendix B), in double.
struct Scores {
  std::vector<std::vector<double>> share;  // the approximate softmax of each query head, [g][S]
  std::vector<double> score;               // what positions are ranked by, [S]
  double score_error = 0;                  // of an f32 evaluation of `score`
  double share_error = 0;                  // relative, of a sum of shares

  Scores(const RandomCache& cache, int head, const float* q, int group, const ChosenComponents& chosen,
         const gpu::SparqSelect& args) {
    const int d = cache.shape().head_dim;
    const std::int64_t S = cache.tokens();
    const std::vector<int>& components = chosen.components;
    const auto rank = static_cast<int>(components.size());
    const GroupRule rule = args.rule;

    score.assign(static_cast<std::size_t>(S), 0.0);
    for (int h = 0; h < group; ++h) {
      const double tau = sparq_oracle_temperature(q + h * d, d, components, args.temperature);
      // An f32 logit of r products is off by at most (r + 4) eps / 2 times the sum of their magnitudes.
      double error = 0;
      std::vector<double> s(static_cast<std::size_t>(S));
      const double off = planes_error(cache, head, q + h * d, tau, chosen);
      for (std::int64_t t = 0; t < S; ++t) {
        double size = 0;
        for (std::size_t j = 0; j < components.size(); ++j) {
          const int i = components[j];
          const double product = q[h * d + i] * cache.searched_key(head, t, i, chosen.planes[j]) / tau;
          s[static_cast<std::size_t>(t)] += product;
          size += std::fabs(product);
        }
        error = std::max(error, (rank + 4) * eps / 2 * size + off);
      }
      const auto [least, most] = std::minmax_element(s.begin(), s.end());
      const double low = *least, high = *most;
      std::vector<double> p(s.size());
      double sum = 0;
      for (std::size_t t = 0; t < s.size(); ++t) sum += p[t] = std::exp(s[t] - high);
      for (double& x : p) x /= sum;
      for (std::size_t t = 0; t < s.size(); ++t) score[t] += rule == GroupRule::softmax && group > 1 ? p[t] : s[t];
      // A logit's error is a share's relative error, twice because the normaliser has it too; exp adds 1e-6 and the
      // rounding of its argument.
      share_error = std::max(share_error, 2 * error + 1e-6 + eps * (high - low));
      if (rule == GroupRule::logits || group == 1) score_error += error;
      share.push_back(std::move(p));
    }
    if (rule == GroupRule::softmax && group > 1) {
      score_error = share_error * *std::max_element(score.begin(), score.end());
    }
  }

 private:
  // index/scan/columns/plane_weights.h: weights are rounded to half of one of so many parts of the sum of |w|
  // half-width, times a level of 2^p - 1 each. A half-width is at most what the keys of a component differ by.
  static double planes_error(const RandomCache& cache, int head, const float* q, double tau,
                             const ChosenComponents& chosen) {
    if (!in_planes(cache.shape().columns)) return 0;
    double reach = 0, levels = 0;
    for (std::size_t j = 0; j < chosen.components.size(); ++j) {
      const int i = chosen.components[j];
      double lo = std::numeric_limits<double>::infinity(), hi = -lo;
      for (std::int64_t t = 0; t < cache.shape().stored; ++t) {
        lo = std::min(lo, cache.key(head, t, i));
        hi = std::max(hi, cache.key(head, t, i));
      }
      reach += std::fabs(q[i]) / tau * (hi - lo + 1e-6);
      levels += (1 << chosen.planes[j]) - 1;
    }
    return levels * reach / index::plane_units(static_cast<int>(chosen.components.size()));
  }
};

class CudaSelect : public CudaTest {
 protected:
  struct Selection {
    std::vector<std::int32_t> positions;
    std::vector<float> alpha;
  };

  static Selection select(gpu::Backend& backend, const gpu::CacheView& view, const std::vector<float>& q,
                          const gpu::SparqSelect& args) {
    const int query_heads = static_cast<int>(q.size()) / view.head_dim;
    const gpu::Buffer query = upload(backend, q);
    const auto count = static_cast<std::size_t>(view.kv_heads) * static_cast<std::size_t>(args.k);
    const gpu::Buffer positions = upload(backend, std::vector<std::int32_t>(count + 1, -1));
    const gpu::Buffer alpha = upload(backend, std::vector<float>(static_cast<std::size_t>(query_heads), -1.0f));
    backend.select_sparq(view, query.as<float>(), query_heads, args, positions.as<std::int32_t>(), alpha.as<float>(),
                         backend.stream());
    Selection result{download<std::int32_t>(backend, positions), download<float>(backend, alpha)};
    EXPECT_EQ(result.positions.back(), -1);  // nothing is written past the last list
    result.positions.pop_back();
    return result;
  }

  // A selection by eight components, or by 21 bits of planes.
  static SelectCase of(ColumnFormat format, int group, std::int64_t stored, int block_tokens = 256) {
    SelectCase c{{.kv_heads = 2,
                  .head_dim = 32,
                  .block_tokens = block_tokens,
                  .stored = stored,
                  .tail = 9,
                  .seed = 5,
                  .columns = format},
                 group};
    if (in_planes(format)) c.bits = 21;
    return c;
  }

  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) several_kernels = make_cuda({.short_list_keys = 0});
  }
  // Selects from lists of any length as from long ones, in every other case.
  std::unique_ptr<gpu::Backend> several_kernels;
  int cases = 0;

  void expect_like_cpu(const SelectCase& c) { expect_like_cpu(++cases % 2 == 0 ? *several_kernels : *cuda, c); }
  void expect_like_cpu(gpu::Backend& device, const SelectCase& c) {
    SCOPED_TRACE(::testing::Message() << "d=" << c.cache.head_dim << " g=" << c.group << " r=" << c.rank << " k=" << c.k
                                      << " limit=" << c.limit << " B=" << c.cache.block_tokens
                                      << " stored=" << c.cache.stored << " tail=" << c.cache.tail
                                      << " columns=" << offload::name(c.cache.columns) << " seed=" << c.cache.seed
                                      << " bits=" << c.bits);
    SharedCache cache(device, c.cache, c.host);
    const std::vector<float> q = random_query(c.group * c.cache.kv_heads, c.cache.head_dim, c.cache.seed + 100);
    const gpu::SparqSelect args = c.args();
    const Selection actual = select(device, cache.on_cuda(), q, args);
    const Selection expected = select(*cpu, cache.on_cpu(), q, args);
    for (int head = 0; head < c.cache.kv_heads; ++head) {
      const float* const own = q.data() + head * c.group * c.cache.head_dim;
      const std::span<const float> spread = cache.on_cpu().store.spread;
      const ChosenComponents chosen(own, c.group, c.cache.head_dim,
                                    spread.empty() ? nullptr : spread.data() + head * c.cache.head_dim, args);
      const Scores scores(cache.values(), head, own, c.group, chosen, args);
      const auto first = actual.positions.begin() + static_cast<std::ptrdiff_t>(head) * c.k;
      const std::vector<std::int32_t> list(first, first + c.k);
      expect_top(scores, args.limit, list);
      if (gap(scores, args.limit, c.k) > 2 * scores.score_error) {
        const auto cpu_first = expected.positions.begin() + static_cast<std::ptrdiff_t>(head) * c.k;
        EXPECT_EQ(list, std::vector<std::int32_t>(cpu_first, cpu_first + c.k));
      }
      for (int h = 0; h < c.group; ++h) {
        const std::vector<double>& share = scores.share[static_cast<std::size_t>(h)];
        double mass = std::accumulate(share.begin() + args.limit, share.end(), 0.0);
        for (const std::int32_t t : list) mass += share[static_cast<std::size_t>(t)];
        // Sums of up to some thousand f32 numbers, in parts of a few hundred.
        EXPECT_NEAR(actual.alpha[static_cast<std::size_t>(head * c.group + h)], mass,
                    (scores.share_error + 300 * eps) * mass);
      }
    }
  }

  static void expect_same(const Selection& actual, const Selection& expected) {
    EXPECT_EQ(actual.positions, expected.positions);
    EXPECT_EQ(actual.alpha, expected.alpha);
  }

  // k ascending positions of [0, limit), and nothing outside beats anything inside by more than f32 can tell.
  static void expect_top(const Scores& scores, std::int64_t limit, const std::vector<std::int32_t>& list) {
    std::vector<bool> inside(static_cast<std::size_t>(limit));
    double worst = std::numeric_limits<double>::infinity();
    std::int32_t before = -1;
    for (const std::int32_t t : list) {
      ASSERT_TRUE(t > before && t < limit) << "position " << t << " after " << before;
      before = t;
      inside[static_cast<std::size_t>(t)] = true;
      worst = std::min(worst, scores.score[static_cast<std::size_t>(t)]);
    }
    for (std::int64_t t = 0; t < limit; ++t) {
      if (!inside[static_cast<std::size_t>(t)]) {
        ASSERT_LE(scores.score[static_cast<std::size_t>(t)], worst + 2 * scores.score_error) << "position " << t;
      }
    }
  }

  // Between the last score that is selected and the first that is not.
  static double gap(const Scores& scores, std::int64_t limit, int k) {
    if (k == 0 || k == limit) return std::numeric_limits<double>::infinity();
    std::vector<double> sorted(scores.score.begin(), scores.score.begin() + limit);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    return sorted[static_cast<std::size_t>(k - 1)] - sorted[static_cast<std::size_t>(k)];
  }
};

}  // namespace hayloft::testing
