#include "index/derived/page_bounds.h"
#include "tests/support/method_fixture.h"

namespace hayloft::testing {
namespace {

using runtime::Kind;
using runtime::Place;

class PagesTest : public MethodTest {
 protected:
  PagesTest() { make({.kv_heads = 2, .head_dim = 32, .stored = 320, .tail = 45, .seed = 6}); }

  // The bound of a page for a query head, by definition, in units of logits.
  double bound(int head, std::int64_t page, int page_tokens) const {
    double sum = 0;
    for (int c = 0; c < cache->shape().head_dim; ++c) {
      double most = -std::numeric_limits<double>::infinity();
      for (std::int64_t t = page * page_tokens; t < (page + 1) * page_tokens; ++t) {
        most = std::max(most, query(head)[c] * cache->key(kv_head(head), t, c));
      }
      sum += most;
    }
    return sum / std::sqrt(static_cast<double>(cache->shape().head_dim));
  }
};

TEST_F(PagesTest, BoundsAreTheExtremesOfEveryComponentInWhateverPiecesTheyCome) {
  for (const auto& [block, page] : {std::pair{16, 64}, {64, 16}, {512, 32}}) {
    make({.kv_heads = 2, .head_dim = 256, .block_tokens = block, .stored = 1024, .seed = 6});
    index::DerivedColumns pages(2, 512, 16);
    for (const std::int64_t tokens : {16, 80, 512, 1024}) {
      offload::LayerView view = cache->view().store;
      view.tokens = tokens;
      index::bound_pages(view, page, threads, pages);
      ASSERT_EQ(pages.size(), tokens / page);
    }
    const offload::LayerView view = pages.view();
    for (std::int64_t p = 0; p < pages.size(); ++p) {
      for (int head = 0; head < 2; ++head) {
        for (int c = 0; c < 256; ++c) {
          double most = -100, least = 100;
          for (std::int64_t t = p * page; t < (p + 1) * page; ++t) {
            most = std::max(most, cache->key(head, t, c));
            least = std::min(least, cache->key(head, t, c));
          }
          const auto at = [&](int column) {
            const std::byte* data = view.layout->column(view.blocks[static_cast<std::size_t>(p / 16)], head, column);
            return to_float(reinterpret_cast<const f16*>(data)[p % 16]);
          };
          ASSERT_EQ(at(c), most);
          ASSERT_EQ(at(256 + c), least);
        }
      }
    }
  }
}

TEST_F(PagesTest, NoKeyOfAPageScoresAboveItsBound) {
  for (int head = 0; head < query_heads; ++head) {
    const std::vector<double> logits = exact_logits(head);
    for (std::int64_t p = 0; p < 10; ++p) {
      for (std::int64_t t = p * 32; t < (p + 1) * 32; ++t) {
        ASSERT_LE(logits[static_cast<std::size_t>(t)], bound(head, p, 32) + 1e-9);
      }
    }
  }
}

TEST_F(PagesTest, AttendsToThePagesWithTheLargestBoundsWhole) {
  for (const int page : {16, 32, 64}) {
    const Output output = attend(fmt::format("pages:page={}:k=130:select=query-head", page));
    EXPECT_EQ(output.trace.lists, 4);
    EXPECT_EQ(output.trace.k, 130 / page * page);
    expect_consistent(output, false);
    for (int head = 0; head < query_heads; ++head) {
      std::vector<double> bounds;
      for (std::int64_t p = 0; p < 320 / page; ++p) bounds.push_back(bound(head, p, page));
      std::set<std::int64_t> taken;
      const auto all = attended(output, head);
      for (const std::int64_t t : all) {
        if (t < 320) taken.insert(t / page);
      }
      EXPECT_EQ(taken.size(), static_cast<std::size_t>(130 / page));
      // f32 sums of 64 products below 50.
      expect_the_best(bounds, {taken.begin(), taken.end()}, 320 / page, 1e-3);
    }
  }
}

TEST_F(PagesTest, AGroupRanksItsPagesByTheSumOfTheirSoftmaxesOrTheirLogits) {
  for (const char* rule : {"softmax", "logits"}) {
    const Output output = attend(fmt::format("pages:page=16:k=64:group={}", rule));
    EXPECT_EQ(output.trace.lists, 2);
    expect_consistent(output, false);
    std::vector<std::vector<double>> bounds(static_cast<std::size_t>(query_heads));
    for (int head = 0; head < query_heads; ++head) {
      for (std::int64_t p = 0; p < 20; ++p) bounds[static_cast<std::size_t>(head)].push_back(bound(head, p, 16));
    }
    for (int kv = 0; kv < 2; ++kv) {
      std::vector<double> score = group_softmax(kv, bounds);
      if (std::string(rule) == "logits") {
        for (std::size_t p = 0; p < score.size(); ++p) {
          score[p] = bounds[static_cast<std::size_t>(2 * kv)][p] + bounds[static_cast<std::size_t>(2 * kv + 1)][p];
        }
      }
      std::set<std::int64_t> taken;
      for (const std::int64_t t : attended(output, 2 * kv)) {
        if (t < 320) taken.insert(t / 16);
      }
      expect_the_best(score, {taken.begin(), taken.end()}, 20, 1e-3);
    }
  }
}

TEST_F(PagesTest, EveryPageIsDense) {
  for (const int page : {16, 32, 64}) {
    const Output output = attend(fmt::format("pages:page={}:k=365", page));
    EXPECT_EQ(attended(output, 3), range(0, 365));
    expect_consistent(output, false);
  }
}

TEST_F(PagesTest, WhatTheWindowCutsOfAPageIsAttendedWithIt) {
  // 300 of the 320 in the store may be chosen: 9 whole pages of 32; the 12 behind them, and all later ones, are not.
  const Output output = attend("pages:page=32:k=129:window=65");
  EXPECT_EQ(output.trace.k, 64) << "k less the window";
  EXPECT_EQ(output.trace.ranges[0].begin, 288);
  EXPECT_EQ(output.trace.ranges[0].end, 365);
  expect_consistent(output, false);
}

TEST_F(PagesTest, OnePageAtLeastIsTakenWhereAnyPositionIsAskedFor) {
  EXPECT_EQ(attend("pages:page=32:k=8").trace.k, 32);
  EXPECT_EQ(attend("pages:page=32:k=8:window=8").trace.k, 0);
}

TEST_F(PagesTest, TheWidestHeadHasBoundsToo) {
  make({.kv_heads = 1, .head_dim = 256, .stored = 256, .tail = 3, .seed = 6});
  expect_consistent(attend("pages:page=16:k=64"), false);
}

TEST_F(PagesTest, CountsTwoBoundsPerComponentAndPageNearTheMemory) {
  const auto made = method("pages:page=32:k=64");
  runtime::Counters counters = attend(*made, state_of(*made).get()).counters;
  const std::uint64_t d = 32, attended = 64 + 45;
  EXPECT_EQ(counters.at(Place::near, Kind::index), 2 * 320 * 4 * d / 32);
  EXPECT_EQ(counters.at(Place::link, Kind::rows), 2 * 64 * 4 * d);
  EXPECT_EQ(counters.elements, 2 * (2 * 10 * d + 2 * attended * d + 2 * d));
  EXPECT_EQ(counters.positions_scored, 2u * 10);
  EXPECT_EQ(state_of(*made)->bytes(), made->state_bytes({1, query_heads, 2, 32}, 320));
}

TEST_F(PagesTest, PagesOfOtherSizesAreRefused) {
  for (const char* text : {"pages:page=8", "pages:page=24", "pages:page=128"}) {
    EXPECT_THROW(method(text), Error) << text;
  }
}

TEST_F(PagesTest, AForkDoesNotSeeWhatTheOtherTakesInLater) {
  const auto made = method("pages:page=16:k=64");
  const auto state = made->make_state({1, query_heads, 2, 32}, *backend);
  gpu::CacheView half = cache->view();
  half.store.tokens = 128;
  state->sync_with_cache({&half, 1}, {});
  const auto fork = state->fork();
  const gpu::CacheView whole = cache->view();
  state->sync_with_cache({&whole, 1}, {});
  const std::vector<std::int32_t> expected = attend(*made, state.get()).trace.positions;
  fork->sync_with_cache({&whole, 1}, {});
  EXPECT_EQ(attend(*made, fork.get()).trace.positions, expected);
}

}  // namespace
}  // namespace hayloft::testing
