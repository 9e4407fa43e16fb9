#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "offload/error.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/support/sparq_oracle.h"

// Selection on the device against the CPU backend, and both against sums in double.
namespace hayloft::testing {
namespace {

using gpu::Link;
using index::GroupRule;
using offload::ColumnFormat;

constexpr double eps = std::numeric_limits<float>::epsilon();
constexpr ColumnFormat all_formats[] = {ColumnFormat::f16, ColumnFormat::int8, ColumnFormat::int4};

struct SelectCase {
  CacheShape cache;
  int group = 4;
  int rank = 8;
  int k = 20;
  std::int64_t limit = -1;  // of the store's tokens; -1: all
  GroupRule rule = GroupRule::softmax;
  SharedCache::Host host = SharedCache::Host::pinned;
  index::Temperature temperature = index::Temperature::coverage;
};

// SparQ's scores of one KV head (arXiv 2312.04985, appendix B), in double.
struct Scores {
  std::vector<std::vector<double>> share;  // the approximate softmax of each query head, [g][S]
  std::vector<double> score;               // what positions are ranked by, [S]
  double score_error = 0;                  // of an f32 evaluation of `score`
  double share_error = 0;                  // relative, of a sum of shares

  Scores(const RandomCache& cache, int head, const float* q, int group, int rank, GroupRule rule,
         index::Temperature temperature) {
    const int d = cache.shape().head_dim;
    const std::int64_t S = cache.tokens();
    const std::vector<int> components = sparq_oracle_components(q, group, d, rank);

    score.assign(static_cast<std::size_t>(S), 0.0);
    for (int h = 0; h < group; ++h) {
      const double tau = sparq_oracle_temperature(q + h * d, d, components, temperature);
      // An f32 logit of r products is off by at most (r + 4) eps / 2 times the sum of their magnitudes.
      double error = 0;
      std::vector<double> s(static_cast<std::size_t>(S));
      for (std::int64_t t = 0; t < S; ++t) {
        double size = 0;
        for (const int i : components) {
          const double product = q[h * d + i] * cache.searched_key(head, t, i) / tau;
          s[static_cast<std::size_t>(t)] += product;
          size += std::fabs(product);
        }
        error = std::max(error, (rank + 4) * eps / 2 * size);
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

  void expect_like_cpu(const SelectCase& c) { expect_like_cpu(*cuda, c); }
  void expect_like_cpu(gpu::Backend& device, const SelectCase& c) {
    SCOPED_TRACE(::testing::Message() << "d=" << c.cache.head_dim << " g=" << c.group << " r=" << c.rank << " k=" << c.k
                                      << " limit=" << c.limit << " B=" << c.cache.block_tokens
                                      << " stored=" << c.cache.stored << " tail=" << c.cache.tail
                                      << " columns=" << offload::name(c.cache.columns) << " seed=" << c.cache.seed);
    SharedCache cache(device, c.cache, c.host);
    const std::vector<float> q = random_query(c.group * c.cache.kv_heads, c.cache.head_dim, c.cache.seed + 100);
    gpu::SparqSelect args;
    args.rank = c.rank;
    args.k = c.k;
    args.limit = c.limit < 0 ? c.cache.stored : c.limit;
    args.rule = c.rule;
    args.temperature = c.temperature;
    const Selection actual = select(device, cache.on_cuda(), q, args);
    const Selection expected = select(*cpu, cache.on_cpu(), q, args);
    for (int head = 0; head < c.cache.kv_heads; ++head) {
      const Scores scores(cache.values(), head, q.data() + head * c.group * c.cache.head_dim, c.group, c.rank, c.rule,
                          c.temperature);
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

TEST_F(CudaSelect, SparqSelectsWhatTheCpuSelectsForEveryGroupAndRule) {
  for (int group = 1; group <= 17; ++group) {
    for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
      expect_like_cpu({{.kv_heads = 2, .head_dim = 32, .stored = 700, .tail = 30, .seed = 3}, group, 8, 40, 690, rule});
    }
  }
}

TEST_F(CudaSelect, SparqDividesByTheTemperatureAskedFor) {
  for (const auto temperature : {index::Temperature::head_dim, index::Temperature::rank}) {
    SelectCase c{{.kv_heads = 2, .head_dim = 64, .stored = 600, .tail = 30, .seed = 8}, 4, 12, 40};
    c.temperature = temperature;
    expect_like_cpu(c);
  }
}

TEST_F(CudaSelect, SparqSelectsWhatTheCpuSelectsForEveryHeadDimensionAndRank) {
  for (const int d : {8, 64, 80, 96, 128, 256}) {
    for (const int rank : {1, 5, 16, d}) {
      if (rank <= d) expect_like_cpu({{.head_dim = d, .stored = 300, .tail = 5, .seed = 4}, 2, rank, 25});
    }
  }
}

TEST_F(CudaSelect, SparqReadsEveryColumnFormatInBlocksOfEverySize) {
  for (const ColumnFormat columns : all_formats) {
    for (const int block : {16, 32, 64, 512, 4096}) {
      for (const std::int64_t stored : {1, 999, 1024}) {
        const CacheShape cache{
            .kv_heads = 2, .head_dim = 16, .block_tokens = block, .stored = stored, .tail = 9, .columns = columns};
        expect_like_cpu({cache, 4, 5, static_cast<int>(std::min<std::int64_t>(stored, 33))});
      }
    }
  }
}

TEST_F(CudaSelect, SparqScoresEveryGroupInEveryColumnFormat) {
  for (const ColumnFormat columns : {ColumnFormat::int8, ColumnFormat::int4}) {
    for (int group = 1; group <= 16; ++group) {
      expect_like_cpu({{.head_dim = 24, .block_tokens = 256, .stored = 700, .seed = 5, .columns = columns}, group, 11});
    }
  }
}

TEST_F(CudaSelect, SparqScoresEveryComponentOfEveryHeadDimensionInEveryColumnFormat) {
  for (const ColumnFormat columns : all_formats) {
    for (const int d : {64, 80, 96, 128, 256}) {
      expect_like_cpu(
          {{.head_dim = d, .block_tokens = 128, .stored = 300, .tail = 5, .seed = 20, .columns = columns}, 2, d, 25});
    }
  }
}

TEST_F(CudaSelect, SparqScoresSixteenHeadsByAllOf256ComponentsWithTheirScales) {
  // The most that a block of the scan keeps in shared memory: 256 (16 * 4 + 4 + 128) bytes, beyond the 48 KiB that a
  // kernel has without asking.
  for (const ColumnFormat columns : {ColumnFormat::int8, ColumnFormat::int4}) {
    expect_like_cpu({{.head_dim = 256, .block_tokens = 256, .stored = 300, .seed = 21, .columns = columns}, 16, 256});
  }
}

TEST_F(CudaSelect, SparqSelectsAnyNumberOfPositionsBelowAnyLimit) {
  for (const std::int64_t limit : {0, 1, 255, 256, 500, 777}) {
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, limit / 2, limit}) {
      if (k <= limit) {
        expect_like_cpu({{.head_dim = 16, .stored = 777, .tail = 300, .seed = 6}, 4, 6, static_cast<int>(k), limit});
      }
    }
  }
}

TEST_F(CudaSelect, SparqHoldsForManySeeds) {
  for (std::uint32_t seed = 10; seed < 20; ++seed) {
    expect_like_cpu({{.head_dim = 32, .block_tokens = 128, .stored = 1500, .tail = 70, .seed = seed}, 4, 8, 150});
  }
}

TEST_F(CudaSelect, SparqWithoutATailCountsTheStoreAlone) {
  expect_like_cpu({{.kv_heads = 3, .head_dim = 16, .stored = 640, .seed = 7}, 4, 4, 64, 500});
}

TEST_F(CudaSelect, LogitsFarApartSelectTheSameAsWell) {
  // Softmaxes that underflow nearly everywhere: the scale that a group shares must keep the best apart.
  expect_like_cpu({{.head_dim = 32, .stored = 600, .tail = 40, .seed = 8, .key_scale = 20}, 4, 16, 2});
}

TEST_F(CudaSelect, EqualScoresGoToTheSmallerPosition) {
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 16, .stored = 900, .tail = 4, .seed = 9, .key_scale = 0});
  gpu::SparqSelect args;
  args.rank = 4;
  args.k = 300;
  args.limit = 880;
  const Selection selection = select(*cuda, cache.on_cuda(), random_query(8, 16, 1), args);
  for (std::size_t i = 0; i < 600; ++i) ASSERT_EQ(selection.positions[i], static_cast<std::int32_t>(i % 300));
}

TEST_F(CudaSelect, TiesAmongDifferentScoresGoToTheSmallerPosition) {
  // One component of int4: 15 levels per scale, so that most scores are shared by several positions.
  SharedCache cache(*cuda, {.head_dim = 8, .block_tokens = 4096, .stored = 2000, .columns = ColumnFormat::int4});
  std::vector<float> q(8, 0.0f);
  q[3] = 1;
  gpu::SparqSelect args;
  args.rank = 1;
  args.limit = 2000;
  for (const int k : {1, 10, 100, 500, 1999}) {
    args.k = k;
    std::vector<std::int32_t> expected(2000);
    std::iota(expected.begin(), expected.end(), 0);
    const auto value = [&](std::int32_t t) { return cache.values().searched_key(0, t, 3); };
    std::stable_sort(expected.begin(), expected.end(),
                     [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
    expected.resize(static_cast<std::size_t>(k));
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(select(*cuda, cache.on_cuda(), q, args).positions, expected);
  }
}

TEST_F(CudaSelect, AQueryOfZerosSelectsTheFirstPositions) {
  SharedCache cache(*cuda, {.head_dim = 64, .stored = 256, .tail = 44});
  gpu::SparqSelect args;
  args.rank = 8;
  args.k = 30;
  args.limit = 256;
  const std::vector<float> zeros(2 * 64);
  const Selection selection = select(*cuda, cache.on_cuda(), zeros, args);
  for (std::int32_t i = 0; i < 30; ++i) EXPECT_EQ(selection.positions[static_cast<std::size_t>(i)], i);
  for (const float a : selection.alpha) EXPECT_NEAR(a, 74.0 / 300, 300 * eps);  // every position has the same share
}

TEST_F(CudaSelect, AQueryThatIsNotANumberStaysWithinTheLists) {
  SharedCache cache(*cuda, {.head_dim = 16, .stored = 300, .tail = 10});
  gpu::SparqSelect args;
  args.rank = 4;
  args.k = 50;
  args.limit = 290;
  const std::vector<float> nan(4 * 16, std::numeric_limits<float>::quiet_NaN());
  const Selection selection = select(*cuda, cache.on_cuda(), nan, args);
  for (std::int32_t i = 0; i < 50; ++i) EXPECT_EQ(selection.positions[static_cast<std::size_t>(i)], i);
}

TEST_F(CudaSelect, AnEmptyStoreLeavesTheTailWithAllTheMass) {
  SharedCache cache(*cuda, {.head_dim = 64, .tail = 100});
  gpu::SparqSelect args;
  args.rank = 16;
  const Selection selection = select(*cuda, cache.on_cuda(), random_query(4, 64, 9), args);
  EXPECT_EQ(selection.alpha, std::vector<float>(4, 1.0f));
}

TEST_F(CudaSelect, EveryWayOverTheLinkGivesTheSameBits) {
  std::vector<std::unique_ptr<gpu::Backend>> devices;
  for (const Link link : {Link::copy, Link::both}) {
    for (const std::uint64_t least : {std::uint64_t{0}, std::uint64_t{1}, gpu::worthwhile_copy_bytes}) {
      devices.push_back(make_cuda({.link = link, .least_copy_bytes = least}));  // with the last it reads in place
    }
  }
  for (const ColumnFormat columns : all_formats) {
    for (const int block : {16, 256, 1024}) {
      SCOPED_TRACE(::testing::Message() << offload::name(columns) << " B=" << block);
      const CacheShape shape{
          .kv_heads = 3, .head_dim = 16, .block_tokens = block, .stored = 1500, .tail = 20, .columns = columns};
      const std::vector<float> q = random_query(6, 16, 11);
      gpu::SparqSelect args;
      args.rank = 6;
      args.k = 77;
      args.limit = 1400;
      SharedCache in_place(*cuda, shape);
      const Selection expected = select(*cuda, in_place.on_cuda(), q, args);
      for (const auto& device : devices) {
        SharedCache cache(*device, shape);
        expect_same(select(*device, cache.on_cuda(), q, args), expected);
      }
      SharedCache pageable(*cuda, shape, SharedCache::Host::pageable);
      expect_same(select(*cuda, pageable.on_cuda(), q, args), expected);
    }
  }
}

TEST_F(CudaSelect, ColumnsThatComeInSeveralTilesGiveTheSameBits) {
  // A staging tile of 256 f16 columns has room for 32768 tokens, half as many when they are staged: whole blocks of
  // 4096, or a part of the only one.
  for (const int block : {4096, 65536}) {
    const CacheShape shape{.head_dim = 256, .block_tokens = block, .stored = 33000};
    const std::vector<float> q = random_query(1, 256, 17);
    gpu::SparqSelect args;
    args.rank = 256;
    args.k = 200;
    args.limit = 33000;
    SharedCache in_place(*cuda, shape);
    const Selection expected = select(*cuda, in_place.on_cuda(), q, args);
    SharedCache pageable(*cuda, shape, SharedCache::Host::pageable);
    expect_same(select(*cuda, pageable.on_cuda(), q, args), expected);
    for (const Link link : {Link::copy, Link::both}) {
      const auto device = make_cuda({.link = link});
      SharedCache cache(*device, shape);
      expect_same(select(*device, cache.on_cuda(), q, args), expected);
    }
  }
}

TEST_F(CudaSelect, ASmallBudgetSelectsForAFewHeadsAtATime) {
  // The scores of a KV head take 1.3 MiB, a 64th of what the arena has of a GiB holds four.
  const auto small = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
  expect_like_cpu(*small,
                  {{.kv_heads = 6, .head_dim = 8, .block_tokens = 4096, .stored = 20000, .tail = 20, .seed = 18},
                   16,
                   2,
                   60,
                   19990});
}

TEST_F(CudaSelect, ArgumentsOutOfRangeAreRefusedAsOnTheCpu) {
  SharedCache cache(*cuda, {.head_dim = 16, .stored = 100});
  const std::vector<float> q = random_query(2, 16, 19);
  const auto refused = [&](int rank, int k, std::int64_t limit) {
    gpu::SparqSelect args;
    args.rank = rank;
    args.k = k;
    args.limit = limit;
    EXPECT_THROW(select(*cuda, cache.on_cuda(), q, args), Error);
  };
  refused(0, 1, 10);
  refused(17, 1, 10);
  refused(4, 11, 10);
  refused(4, 1, 101);
}

TEST_F(CudaSelect, TheSameSelectionTwiceIsTheSameBits) {
  SharedCache cache(*cuda, {.kv_heads = 2, .head_dim = 32, .stored = 1200, .tail = 50});
  const std::vector<float> q = random_query(8, 32, 12);
  gpu::SparqSelect args;
  args.rank = 8;
  args.k = 100;
  args.limit = 1200;
  const Selection first = select(*cuda, cache.on_cuda(), q, args);
  expect_same(select(*cuda, cache.on_cuda(), q, args), first);
}

}  // namespace
}  // namespace hayloft::testing
