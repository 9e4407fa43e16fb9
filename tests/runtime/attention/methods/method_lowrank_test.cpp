#include "index/derived/projections.h"
#include "tests/support/method_fixture.h"

namespace hayloft::testing {
namespace {

using runtime::Kind;
using runtime::Place;

TEST(RandomFrame, IsOrthonormal) {
  for (const auto& [rank, dim] : {std::pair{1, 8}, {5, 24}, {64, 64}, {16, 256}, {16, 512}}) {
    const std::vector<float> frame = index::random_frame(rank, dim, 7);
    for (int i = 0; i < rank; ++i) {
      for (int j = 0; j <= i; ++j) {
        double sum = 0;
        for (int c = 0; c < dim; ++c) sum += double{frame[i * dim + c]} * frame[j * dim + c];
        // Every component rounded to f32 once.
        EXPECT_NEAR(sum, i == j ? 1 : 0, std::sqrt(dim) * 0x1p-23) << i << ' ' << j;
      }
    }
  }
}

TEST(RandomFrame, DependsOnItsSeedAlone) {
  EXPECT_EQ(index::random_frame(8, 32, 1), index::random_frame(8, 32, 1));
  EXPECT_NE(index::random_frame(8, 32, 1), index::random_frame(8, 32, 2));
}

TEST(RandomFrame, PointsEverywhereAlike) {
  // The mean over draws of |e_c R|^2 is r / d for every axis c: 2,000 draws of a share of standard deviation below 0.16
  // have a mean within 5 times 0.0036 of it.
  constexpr int rank = 4, dim = 8, draws = 2000;
  std::vector<double> share(dim, 0.0);
  for (int draw = 0; draw < draws; ++draw) {
    const std::vector<float> frame = index::random_frame(rank, dim, static_cast<std::uint64_t>(draw));
    for (int c = 0; c < dim; ++c) {
      for (int j = 0; j < rank; ++j) share[c] += double{frame[j * dim + c]} * frame[j * dim + c] / draws;
    }
  }
  for (const double s : share) EXPECT_NEAR(s, 0.5, 0.018);
}

class LowRankTest : public MethodTest {
 protected:
  LowRankTest() { make({.kv_heads = 2, .head_dim = 32, .stored = 320, .tail = 45, .seed = 4}); }
};

TEST_F(LowRankTest, ProjectionsAreThoseOfTheRowsInWhateverPiecesTheyCome) {
  const std::vector<float> directions = normal(2 * 5 * 32, 9);
  for (const auto format : {offload::ColumnFormat::f16, offload::ColumnFormat::int8}) {
    make({.kv_heads = 2, .head_dim = 32, .block_tokens = 16, .stored = 336, .seed = 4, .columns = format});
    index::DerivedColumns keys(2, 5, 128);
    for (const std::int64_t tokens : {16, 48, 320, 336}) {
      offload::LayerView view = cache->view().store;
      view.tokens = tokens;
      index::project_keys(view, directions, threads, keys);
      ASSERT_EQ(keys.size(), tokens);
    }
    const offload::LayerView view = keys.view();
    for (int head = 0; head < 2; ++head) {
      for (std::int64_t t = 0; t < 336; ++t) {
        for (int j = 0; j < 5; ++j) {
          const double expected = dot(*cache, head, t, directions.data() + (head * 5 + j) * 32);
          const auto* column = reinterpret_cast<const f16*>(
              view.layout->column(view.blocks[static_cast<std::size_t>(t / 128)], head, j));
          // Rounded to f16; the f32 sum before is off by less.
          ASSERT_NEAR(to_float(column[t % 128]), expected, 0x1p-10 * std::fabs(expected) + 1e-4);
        }
      }
    }
  }
}

TEST_F(LowRankTest, EveryProjectionTogetherIsAnExactScore) {
  // Projections of 32 components are rounded to 11 bits, so the scores are off by 2^-11 of about sqrt(32) 2 / sqrt(32):
  // positions closer than that may change places, and the mass with them.
  const Output lowrank = attend("lowrank:r=32:k=40");
  const Output oracle = attend("oracle:k=40");
  expect_consistent(lowrank, true);
  for (int head = 0; head < query_heads; ++head) {
    std::vector<std::vector<double>> logits;
    for (int h = 0; h < query_heads; ++h) logits.push_back(exact_logits(h));
    expect_the_best(group_softmax(kv_head(head), logits), attended(lowrank, head), 320, 0.02);
    EXPECT_NEAR(lowrank.trace.alpha[static_cast<std::size_t>(head)], oracle.trace.alpha[static_cast<std::size_t>(head)],
                0.01);
  }
}

TEST_F(LowRankTest, EveryProjectionAndEveryPositionIsDense) {
  const Output output = attend("lowrank:r=32:k=365");
  EXPECT_EQ(attended(output, 0), range(0, 365));
  expect_consistent(output, false);
  for (const float alpha : output.trace.alpha) EXPECT_NEAR(alpha, 1, 365 * 0x1p-23);
}

TEST_F(LowRankTest, FollowsTheTemperatureAskedFor) {
  // A smaller tau gathers the softmax on fewer positions. r = 4 of 32: sqrt(r) is the smallest of the three.
  std::vector<float> alpha;
  for (const char* tau : {"r", "d"}) {
    const Output output = attend(std::string("lowrank:r=4:k=200:tau=") + tau);
    expect_consistent(output, true);
    alpha.push_back(output.trace.alpha[0]);
  }
  EXPECT_GT(alpha[0], alpha[1]);
}

TEST_F(LowRankTest, CoverageSpreadsTheApproximateLogitsAsTheExactOnesAre) {
  // Keys are normal in every direction. The approximate logits then are normal numbers of the exact ones' spread, about
  // 2, and the 91 largest of 365 hold about as much of the softmax; divided by sqrt(d), a third of that spread, they
  // would hold a third less.
  const auto alpha = [&](const char* text) {
    const Output output = attend(text);
    return std::accumulate(output.trace.alpha.begin(), output.trace.alpha.end(), 0.0) / query_heads;
  };
  const double exact = alpha("oracle:k=91:window=0");
  EXPECT_NEAR(alpha("lowrank:r=4:k=91:window=0"), exact, 0.05);
  EXPECT_LT(alpha("lowrank:r=4:k=91:window=0:tau=d"), exact - 0.2);
}

TEST_F(LowRankTest, SelectsForEveryQueryHeadWhereAskedTo) {
  const Output output = attend("lowrank:r=8:k=30:window=0:select=query-head");
  EXPECT_EQ(output.trace.lists, 4);
  expect_consistent(output, true);
}

TEST_F(LowRankTest, ReadsAsManyBytesAsSparqAtTheSameRankButNearTheMemory) {
  runtime::Counters lowrank = attend("lowrank:r=8:k=40").counters;
  runtime::Counters sparq = attend("sparq:r=8:k=40").counters;
  EXPECT_EQ(lowrank.elements, sparq.elements);
  EXPECT_EQ(lowrank.at(Place::near, Kind::index), sparq.at(Place::link, Kind::columns));
  EXPECT_EQ(lowrank.at(Place::link, Kind::rows), sparq.at(Place::link, Kind::rows));
  EXPECT_EQ(lowrank.total(Place::link), lowrank.at(Place::link, Kind::rows));
}

TEST_F(LowRankTest, AnotherSeedIsAnotherChoiceAndTheSameSeedTheSame) {
  const auto chosen = [&](const char* text) { return attend(text).trace.positions; };
  EXPECT_EQ(chosen("lowrank:r=4:k=40:seed=5"), chosen("lowrank:r=4:k=40:seed=5"));
  EXPECT_NE(chosen("lowrank:r=4:k=40:seed=5"), chosen("lowrank:r=4:k=40:seed=6"));
}

TEST_F(LowRankTest, StateIsSharedByWhatDiffersInKOnlyAndTakesTheMemoryItSays) {
  EXPECT_EQ(method("lowrank:r=8:k=40")->state_key(), method("lowrank:r=8:k=20:mean=off")->state_key());
  EXPECT_NE(method("lowrank:r=8")->state_key(), method("lowrank:r=9")->state_key());
  const auto made = method("lowrank:r=8");
  EXPECT_EQ(state_of(*made)->bytes(), made->state_bytes({1, query_heads, 2, 32}, 320));
}

TEST_F(LowRankTest, AForkDoesNotSeeWhatTheOtherTakesInLater) {
  const auto made = method("lowrank:r=8:k=40:window=0");
  const auto state = made->make_state({1, query_heads, 2, 32}, *backend);
  gpu::CacheView half = cache->view();
  half.store.tokens = 128;
  state->sync_with_cache({&half, 1}, {});
  const auto fork = state->fork();
  const gpu::CacheView whole = cache->view();
  std::int64_t reported = 0;
  state->sync_with_cache({&whole, 1}, [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 320 - 128);
    reported = done;
  });
  EXPECT_EQ(reported, 320 - 128);
  const std::vector<std::int32_t> expected = attend(*made, state.get()).trace.positions;
  fork->sync_with_cache({&whole, 1}, {});
  EXPECT_EQ(attend(*made, fork.get()).trace.positions, expected);
  EXPECT_EQ(attend(*made, state.get()).trace.positions, expected);
}

}  // namespace
}  // namespace hayloft::testing
