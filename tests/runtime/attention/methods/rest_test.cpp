#include <numeric>

#include "index/scan/kept_scores.h"
#include "index/scan/rest_masses.h"
#include "runtime/attention/logit_lines.h"
#include "runtime/attention/rest_estimate.h"
#include "tests/support/method_fixture.h"
#include "tests/support/refusal.h"

// What stands in for the positions that a step does not read: attention over the whole cache in double is the oracle.
namespace hayloft::testing {
namespace {

using runtime::Kind;
using runtime::Place;

class RestTest : public MethodTest {
 protected:
  RestTest() { make({.kv_heads = 2, .head_dim = 32, .stored = 320, .tail = 45, .seed = 3}); }

  std::vector<double> dense(int head) const {
    std::vector<std::int64_t> all(static_cast<std::size_t>(cache->tokens()));
    std::iota(all.begin(), all.end(), 0);
    return attention(*cache, kv_head(head), query(head), all).y;
  }

  // |y - y of dense attention| / |y of dense attention| of a query head.
  double error(const std::vector<float>& y, int head) const {
    const std::vector<double> exact = dense(head);
    double far = 0;
    double all = 0;
    for (std::size_t c = 0; c < exact.size(); ++c) {
      const double x = y[static_cast<std::size_t>(head) * exact.size() + c] - exact[c];
      far += x * x;
      all += exact[c] * exact[c];
    }
    return std::sqrt(far / all);
  }

  // One step and what it predicts of its error.
  std::pair<std::vector<float>, runtime::StepEstimate> estimate(const std::string& text) {
    const auto made = method(text);
    const auto state = state_of(*made);
    std::pair<std::vector<float>, runtime::StepEstimate> result;
    result.first.resize(q.size());
    const gpu::CacheView view = view_of(0);
    runtime::MethodScratch scratch;
    const offload::Store none(arena, {1, view.kv_heads, view.head_dim, 64});
    const runtime::LayerStep at{*backend, backend->stream(), 0, view, none, query_heads, 1, scratch};
    made->attend(
        {at, q.data(), result.first.data(), *runtime::local_attender(), state.get(), nullptr, nullptr, &result.second});
    return result;
  }
};

TEST_F(RestTest, WhereEveryPositionIsDrawnTheDrawIsDenseAttentionAndSaysSo) {
  // 120 rows, and V of the other 200.
  for (const char* const text : {"oracle:k=240:window=0:rest=draw", "topk:k=240:rest=draw"}) {
    const Output output = attend(text);
    EXPECT_EQ(output.trace.k, 120);
    for (int head = 0; head < query_heads; ++head) EXPECT_LT(error(output.y, head), 2e-5) << text << " head " << head;
    for (const float predicted : estimate(text).second.error) EXPECT_LT(predicted, 2e-5f) << text;
  }
}

TEST_F(RestTest, DrawsComeOutAsDenseAttentionInTheMean) {
  constexpr int draws = 400;
  std::vector<double> sum(q.size());
  std::vector<double> of_one(static_cast<std::size_t>(query_heads));
  for (int seed = 1; seed <= draws; ++seed) {
    // Every component ranks: exact scores, which are not taken towards the mean, as those of `oracle` are.
    const Output output = attend(fmt::format("sparq:r=32:k=40:window=0:rest=draw:seed={}", seed));
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += double{output.y[i]} / draws;
    for (int head = 0; head < query_heads; ++head)
      of_one[static_cast<std::size_t>(head)] += error(output.y, head) / draws;
  }
  const std::vector<float> mean(sum.begin(), sum.end());
  for (int head = 0; head < query_heads; ++head) {
    EXPECT_LT(error(mean, head), of_one[static_cast<std::size_t>(head)] / 4) << head;
  }
}

TEST_F(RestTest, PredictsItsErrorWithinAFactorOfThree) {
  constexpr int draws = 50;
  for (int head = 0; head < query_heads; ++head) {
    double squares = 0;
    double predicted = 0;
    for (int seed = 1; seed <= draws; ++seed) {
      const auto [y, said] = estimate(fmt::format("oracle:k=40:window=0:rest=draw:seed={}", seed));
      ASSERT_EQ(said.error.size(), static_cast<std::size_t>(query_heads));
      squares += error(y, head) * error(y, head) / draws;
      predicted += double{said.error[static_cast<std::size_t>(head)]} / draws;
    }
    EXPECT_GT(predicted, std::sqrt(squares) / 3) << head;
    EXPECT_LT(predicted, std::sqrt(squares) * 3) << head;
  }
  EXPECT_TRUE(estimate("oracle:k=40").second.error.empty()) << "only a rest by scores knows it";
}

TEST_F(RestTest, OfExactScoresTheCalibratedShareIsExact) {
  const Output output = attend("oracle:k=40:window=10:rest=calibrated");
  expect_consistent(output, true);
  for (int head = 0; head < query_heads; ++head) {
    EXPECT_NEAR(output.trace.alpha[static_cast<std::size_t>(head)], mass(exact_logits(head), attended(output, head)),
                1e-4);
  }
}

TEST_F(RestTest, TopKTakesTheMeanValueWhereAskedTo) {
  expect_consistent(attend("topk:k=24:rest=mean"), true);
  EXPECT_EQ(attend("sparq:r=8:k=40:rest=mean").y, attend("sparq:r=8:k=40").y);
  EXPECT_EQ(attend("sparq:r=8:k=40:rest=none").y, attend("sparq:r=8:k=40:mean=off").y);
}

TEST_F(RestTest, ADrawIsTheSameOnEveryNumberOfThreadsAndAnotherByAnotherSeed) {
  for (const char* const name : {"sparq:r=8", "planes:bits=40", "topk", "lowrank:r=8", "oracle"}) {
    const std::string text = fmt::format("{}:k=40:rest=draw", name);
    const bool planes = text.starts_with("planes");
    make({.kv_heads = 2,
          .head_dim = 32,
          .stored = 320,
          .tail = 45,
          .seed = 3,
          .columns = planes ? offload::ColumnFormat::planes : offload::ColumnFormat::f16});
    const Output two = attend(text);
    EXPECT_EQ(attend(text).y, two.y);
    EXPECT_NE(attend(text + ":seed=2").y, two.y);
    const offload::Threads alone(1);
    std::unique_ptr<gpu::Backend> other = gpu::make_cpu_backend(alone);
    std::swap(backend, other);
    EXPECT_EQ(attend(text).y, two.y) << name;
    std::swap(backend, other);
  }
}

TEST_F(RestTest, ADrawReadsTheBytesOfTheRowsThatItDoesWithout) {
  const Output mean = attend("sparq:r=8:k=40:window=10");
  const Output draw = attend("sparq:r=8:k=40:window=10:rest=draw");
  EXPECT_EQ(draw.trace.k, 15);
  EXPECT_EQ(draw.counters.at(Place::link, Kind::rows), mean.counters.at(Place::link, Kind::rows));
  EXPECT_EQ(draw.counters.elements, mean.counters.elements);
}

TEST_F(RestTest, OfIntegerRowsVIsReadAlone) {
  make({.kv_heads = 2, .head_dim = 32, .stored = 320, .tail = 45, .seed = 3, .rows = offload::RowFormat::int8});
  const Output mean = attend("topk:k=40");
  const Output draw = attend("topk:k=40:rest=draw");
  EXPECT_EQ(draw.trace.k, 20);
  // A row is 64 levels and two scales, 72 bytes in whole eights; V all but the 32 levels of K, 40 bytes: 36 for 20
  // rows.
  const std::uint64_t lists = 2 * static_cast<std::uint64_t>(query_heads / 2);
  EXPECT_EQ(draw.counters.at(Place::link, Kind::rows), lists * (20 * 72 + 36 * 40));
  EXPECT_EQ(mean.counters.at(Place::link, Kind::rows), lists * 40 * 72);
}

// Few values drawn of heads that attend to everything say little of their mean: it is taken towards the mean of V.
TEST_F(RestTest, AnExactRankingsDrawIsTakenTowardsTheMeanWhereItKnowsLittle) {
  make({.kv_heads = 2, .head_dim = 32, .stored = 640, .tail = 20, .seed = 5});
  for (float& x : q) x *= 0.1f;
  const auto mean_error = [&](const std::string& text) {
    double sum = 0;
    for (int seed = 1; seed <= 20; ++seed) {
      const Output output = attend(fmt::format("{}:k=16:window=0:rest=draw:seed={}", text, seed));
      for (int head = 0; head < query_heads; ++head) sum += error(output.y, head) / (20 * query_heads);
    }
    return sum;
  };
  EXPECT_LT(mean_error("oracle"), mean_error("sparq:r=32") / 2);
}

TEST(KeptOfDrawn, IsJamesAndSteinsFactor) {
  EXPECT_FLOAT_EQ(runtime::kept_of_drawn(0, 0), 1);
  EXPECT_FLOAT_EQ(runtime::kept_of_drawn(0, 2), 1);
  EXPECT_FLOAT_EQ(runtime::kept_of_drawn(1, 2), 0.75f);
  EXPECT_FLOAT_EQ(runtime::kept_of_drawn(4, 2), 0);
}

TEST(LineSample, IsOfPositionsThatStayWhileTheContextGrows) {
  for (const std::int64_t limit : {0, 1, 200, 256, 257, 5000, 1000000}) {
    const std::vector<std::int32_t> positions = runtime::line_positions(limit);
    EXPECT_GE(static_cast<std::int64_t>(positions.size()), std::min<std::int64_t>(limit, 128));
    EXPECT_LE(positions.size(), 256u);
    EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
    EXPECT_EQ(std::adjacent_find(positions.begin(), positions.end()), positions.end());
    EXPECT_TRUE(positions.empty() || positions.back() < limit);
  }
  const std::vector<std::int32_t> before = runtime::line_positions(5000);
  const std::vector<std::int32_t> after = runtime::line_positions(5100);
  ASSERT_LE(before.size(), after.size());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
}

// The sample's scores are those of the columns, and its logits those of the keys, also after blocks have become others.
TEST(LineSample, HasTheKeysOfTheBlocksThatAreThere) {
  const offload::Threads threads(1);
  runtime::LineSample sample;
  for (const std::uint32_t seed : {7u, 8u}) {
    for (const auto columns : {offload::ColumnFormat::planes, offload::ColumnFormat::f16}) {
      RandomCache cache(
          {.kv_heads = 2, .head_dim = 16, .block_tokens = 512, .stored = 1024, .seed = seed, .columns = columns});
      const offload::LayerView view = cache.stored();
      const std::vector<std::int32_t> positions = runtime::line_positions(1000);
      sample.follow(view, positions, threads);
      ASSERT_EQ(sample.count(), static_cast<int>(positions.size()));
      const std::vector<float> query = normal(2 * 16, 9);
      const std::vector<std::uint8_t> planes{4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 4, 4, 4, 0, 1, 1};
      std::vector<float> approximate(2 * index::line_row), exact(2 * index::line_row);
      for (int head = 0; head < 2; ++head) {
        const bool by_planes = columns == offload::ColumnFormat::planes;
        index::line_logits(sample.of(head), query.data(), query.data(), 2, by_planes ? planes.data() : nullptr,
                           approximate.data(), exact.data());
        for (std::size_t i = 0; i < positions.size(); ++i) {
          const std::int32_t t = positions[i];
          double a = 0;
          double l = 0;
          for (int c = 0; c < 16; ++c) {
            const double weight = query[16 + static_cast<std::size_t>(c)];
            const int read = by_planes ? planes[static_cast<std::size_t>(c)] : offload::plane_count;
            l += weight * cache.key(head, t, c);
            if (read > 0) a += weight * cache.searched_key(head, t, c, read);
          }
          ASSERT_NEAR(approximate[index::line_row + i], a, 1e-4) << t;
          ASSERT_NEAR(exact[index::line_row + i], l, 1e-4) << t;
        }
      }
    }
  }
}

TEST_F(RestTest, IsRefusedWhereThereAreNoScoresOfPositions) {
  EXPECT_TRUE(test::refuses([&] { method("pages:rest=mean"); }, {"--attn-rest mean: pages has bounds of pages"}));
  EXPECT_TRUE(test::refuses([&] { method("ann:rest=draw"); }, {"--attn-rest draw: ann does not score every position"}));
  EXPECT_TRUE(test::refuses([&] { method("topk:engine=faiss:rest=draw"); }, {"use --attn-engine own"}));
  EXPECT_TRUE(test::refuses([&] { method("window:rest=draw"); }, {"window does not use 'rest'"}));
  EXPECT_TRUE(test::refuses([&] { method("sparq:rest=guess"); }, {"must be one of none, mean, calibrated, draw"}));
  EXPECT_NO_THROW(method("pages:rest=none"));
}

TEST(LogitLine, IsTheLineOfLeastSquares) {
  const std::vector<float> a{0, 1, 2, 3};
  const std::vector<float> l{1, 1.5f, 1.5f, 3};  // by hand: cov 3 / 4, var 5 / 4 and 2.25 / 4
  const index::LogitLine line = runtime::fit_line(a.data(), l.data(), 4);
  EXPECT_FLOAT_EQ(line.slope, 0.6f);
  EXPECT_FLOAT_EQ(line.offset, 0.85f);
  EXPECT_NEAR(line.residual, 0.1125, 1e-6);
  const std::vector<float> steep{0, 10, 20, 30};
  EXPECT_FLOAT_EQ(runtime::fit_line(a.data(), steep.data(), 4).slope, 1.2f);
  EXPECT_EQ(runtime::fit_line(nullptr, nullptr, 0).slope, 1);
}

// A draw over several parts of the scan, held against its definition.
TEST(RestMasses, KeepsTheLargestOfMassOverRandomNumber) {
  constexpr int stored = 20000;
  RandomCache cache({.kv_heads = 1, .head_dim = 16, .block_tokens = 4096, .stored = stored, .seed = 7});
  const std::vector<float> weights = normal(std::size_t{2 * 16}, 9, 0.5f);
  std::vector<std::int32_t> components(16);
  std::iota(components.begin(), components.end(), 0);
  const std::vector<std::int32_t> taken{3, 4, 9000, 19998};
  const std::vector<index::LogitLine> lines{{0.7f, 0.2f, 0.1f}, {1, -0.1f, 0}};
  const std::vector<float> log_sums{8, 9};
  index::RestSearch search;
  search.scores.query_heads = 2;
  search.scores.rank = 16;
  search.scores.components = components.data();
  search.scores.weights = weights.data();
  search.scores.limit = stored - 1;
  search.scores.k = static_cast<int>(taken.size());
  search.lines = lines.data();
  search.log_sums = log_sums.data();
  search.taken = taken.data();
  search.count = 100;
  search.key = 0x123456789abcdefu;
  const offload::LayerView view = cache.stored();
  const offload::Threads two(2);
  const index::RestMasses rest = index::rest_masses(view, search, two);

  struct Candidate {
    double rank;
    double p;
    std::int32_t position;
  };
  std::vector<Candidate> all;
  double sums[2] = {};
  for (std::int32_t t = 0; t < stored - 1; ++t) {
    if (std::find(taken.begin(), taken.end(), t) != taken.end()) continue;
    double p = 0;
    for (std::size_t h = 0; h < 2; ++h) {
      double s = 0;
      for (int c = 0; c < 16; ++c) s += cache.key(0, t, c) * double{weights[h * 16 + static_cast<std::size_t>(c)]};
      const double x = std::exp(double{lines[h].slope} * s + double{lines[h].offset} - double{log_sums[h]});
      p += x;
      sums[h] += x;
    }
    all.push_back({p / double{index::drawn_number(search.key, t)}, p, t});
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.rank > b.rank; });
  const double threshold = all[100].rank;
  all.resize(100);
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.position < b.position; });
  ASSERT_EQ(rest.draws.size(), 1u);
  const index::RestMasses::Draw& draw = rest.draws.front();
  ASSERT_EQ(draw.positions.size(), 100u);
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(draw.positions[i], all[i].position);
    EXPECT_NEAR(draw.chances[i], std::min(1.0, all[i].p / threshold), 1e-4);
    EXPECT_NEAR(draw.masses[i] + draw.masses[100 + i], all[i].p, 1e-4 * all[i].p);
  }
  for (std::size_t h = 0; h < 2; ++h) EXPECT_NEAR(rest.sum[h], sums[h], 1e-4 * sums[h]);
}

// Whether the scores of the ranking are kept or found anew makes no difference, in any format of the keys.
TEST(RestMasses, OfKeptScoresAreThoseOfColumnsReadAgain) {
  constexpr int stored = 5000;
  constexpr int k = 20;
  for (const auto columns : {offload::ColumnFormat::f16, offload::ColumnFormat::int4, offload::ColumnFormat::planes}) {
    for (const auto per : {index::SelectPer::kv_head, index::SelectPer::query_head}) {
      RandomCache cache(
          {.kv_heads = 2, .head_dim = 16, .block_tokens = 128, .stored = stored, .seed = 7, .columns = columns});
      const std::vector<float> weights = normal(std::size_t{6 * 16}, 9, 0.5f);
      std::vector<std::int32_t> components(2 * 16);
      for (std::size_t i = 0; i < components.size(); ++i) components[i] = static_cast<std::int32_t>(i % 16);
      const std::vector<index::LogitLine> lines(6, {0.7f, 0.2f, 0.1f});
      const std::vector<float> log_sums{8, 9, 8, 7, 8, 9};
      index::ColumnSearch scores;
      scores.query_heads = 6;
      scores.rank = 16;
      scores.per = per;
      scores.components = components.data();
      scores.weights = weights.data();
      scores.limit = stored - 77;
      scores.k = k;
      const offload::LayerView view = cache.stored();
      const offload::Threads two(2);
      std::vector<std::int32_t> taken(6 * k);
      index::KeptScores kept;
      index::SearchResult result;
      result.positions = taken.data();
      index::search_columns(view, scores, two, result);
      const std::vector<std::int32_t> without = taken;
      result.kept = &kept;
      index::search_columns(view, scores, two, result);
      EXPECT_EQ(taken, without);
      ASSERT_FALSE(kept.empty());
      index::RestSearch search{scores, lines.data(), log_sums.data(), taken.data(), 50, 12345};
      const index::RestMasses anew = index::rest_masses(view, search, two);
      search.kept = &kept;
      const index::RestMasses once = index::rest_masses(view, search, two);
      EXPECT_TRUE(kept.empty()) << "its scores are masses now";
      EXPECT_EQ(once.sum, anew.sum);
      EXPECT_EQ(once.squares, anew.squares);
      ASSERT_EQ(once.draws.size(), anew.draws.size());
      for (std::size_t list = 0; list < once.draws.size(); ++list) {
        EXPECT_EQ(once.draws[list].positions, anew.draws[list].positions);
        EXPECT_EQ(once.draws[list].chances, anew.draws[list].chances);
        EXPECT_EQ(once.draws[list].masses, anew.draws[list].masses);
      }
    }
  }
}

TEST(KeptScores, AreNotKeptWhereTheyAreMany) {
  index::KeptScores kept;
  EXPECT_TRUE(kept.start(2, 3, 1024));
  EXPECT_FALSE(kept.empty());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(kept.tile(0, 0)) % 64, 0u);
  EXPECT_FALSE(kept.start(32, 1024, 1024));
  EXPECT_TRUE(kept.empty());
}

}  // namespace
}  // namespace hayloft::testing
