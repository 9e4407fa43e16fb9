#include "runtime/attention/method_ladder.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "offload/error.h"
#include "runtime/attention/column_recall.h"
#include "tests/support/method_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime::ladder {
namespace {

using testing::MethodTest;

constexpr int B = 64;
constexpr int heads = 2;  // KV heads, one query head each
constexpr int d = 16;

// A machine whose rates are the same for all lengths; what a test does not set is too slow to be chosen.
struct Machine {
  double dense = 10, scan = 10, rows = 10, tail = 10, sparq_tail = 10, exact = 1e-3, planes = 1e-3, select_us = 0;
  double integer_rows = 0;
  double margin = 0;

  std::shared_ptr<const MachineRates> rates() const {
    MachineRates machine;
    machine.source = "a test";
    machine.integer_rows = machine.integer_keys = integer_rows;
    machine.margin = margin;
    machine.rates = [from = *this](int, int, std::uint64_t) {
      AttentionRates rates;
      rates.dense = from.dense;
      for (const offload::ColumnTraits& traits : offload::column_traits) {
        rates.sparq_scan(traits.format) = traits.planes > 1 ? from.planes : from.scan;
      }
      rates.row_gather = from.rows;
      rates.tail = from.tail;
      rates.sparq_tail = from.sparq_tail;
      rates.exact_scan = rates.row_scan = from.exact;
      rates.column_select_us = rates.exact_select_us = from.select_us;
      return rates;
    };
    return std::make_shared<const MachineRates>(machine);
  }
};

MethodOptions options_of(const std::string& text, const Machine& machine) {
  MethodOptions options = parse_method(text, {});
  options.rates = machine.rates();
  return options;
}

// A cache of which only the shape is looked at.
struct Shape {
  explicit Shape(offload::ColumnFormat columns = offload::ColumnFormat::f16,
                 offload::RowFormat rows = offload::RowFormat::f16)
      : layout({1, heads, d, B, columns, rows}) {}
  gpu::CacheView at(std::int64_t stored, std::int64_t tail, int layer = 0) const {
    gpu::CacheView cache;
    cache.layer = layer;
    cache.kv_heads = heads;
    cache.head_dim = d;
    cache.store.layout = &layout;
    cache.store.tokens = stored;
    cache.tail.position = stored;
    cache.tail.tokens = tail;
    return cache;
  }
  offload::BlockLayout layout;
};

std::string chosen(const Method& method, const gpu::CacheView& cache) {
  return method.plan(cache, heads).by->options().name;
}

TEST(AutoMethod, TakesSparqFromTheLengthOnAtWhichItsBytesTakeLessTime) {
  for (const double margin : {0.0, 0.05, 0.3}) {
    Machine machine;
    machine.sparq_tail = 4;
    machine.rows = 5;
    machine.margin = margin;
    const auto method = make_method(options_of("auto:r=4:k=16", machine), d);
    const Shape shape;
    std::set<std::string> seen;
    for (std::int64_t stored = 0; stored <= 64 * B; stored += B) {
      for (std::int64_t tail = 8; tail < 2 * B; tail += 3) {
        const std::string by = chosen(*method, shape.at(stored, tail));
        // In nanoseconds for a head. The tail counts as what lies in the middle of its eighth of a block: 8 tokens.
        const double newest = static_cast<double>(tail / 8 * 8 + 4);
        const double dense = static_cast<double>(stored) * 4 * d / 10 + newest * 4 * d / 10;
        const double sparq = static_cast<double>(stored) * 4 * 2 / 10 + 12.0 * 4 * d / 5 + newest * 4 * d / 4;
        ASSERT_EQ(by, stored > 0 && sparq < (1 - margin) * dense ? "sparq" : "dense") << stored << " and " << tail;
        seen.insert(by);
      }
    }
    EXPECT_EQ(seen.size(), 2u);
  }
}

TEST(AutoMethod, ChangesAtMostTwiceWhileABlockFillsUp) {
  Machine machine;
  machine.sparq_tail = 4;
  machine.margin = 0.05;
  const auto method = make_method(options_of("auto:r=4:k=16", machine), d);
  const Shape shape;
  std::string last = "dense";
  int in_block = 0, all = 0;
  for (std::int64_t tokens = 1, stored = 0; tokens < 40 * B; ++tokens) {
    if (tokens - stored >= B + 16) stored += B, in_block = 0;  // as a cache with a window of 16 spills
    const std::string now = chosen(*method, shape.at(stored, tokens - stored));
    if (now != last) ++in_block, ++all;
    ASSERT_LE(in_block, 2) << tokens;
    last = now;
  }
  EXPECT_EQ(last, "sparq");
  EXPECT_GT(all, 1) << "there are lengths at which the tail decides";
}

TEST(AutoMethod, TakesWhatTheColumnsPermit) {
  using offload::ColumnFormat;
  Machine machine;
  machine.planes = 10;
  machine.exact = 5;
  const auto method = make_method(options_of("auto:r=4:k=16:bits=8", machine), d);
  const auto on = [&](ColumnFormat columns) { return chosen(*method, Shape(columns).at(16 * B, 20)); };
  EXPECT_EQ(on(ColumnFormat::f16), "sparq");
  EXPECT_EQ(on(ColumnFormat::int8), "sparq");
  EXPECT_EQ(on(ColumnFormat::int4), "sparq");
  EXPECT_EQ(on(ColumnFormat::planes), "planes");
  for (const auto columns : {ColumnFormat::f16, ColumnFormat::int4, ColumnFormat::planes}) {
    EXPECT_NO_THROW(method->require_columns(columns));
  }
  Machine searching;
  searching.exact = 1000;
  searching.scan = 1;
  EXPECT_EQ(chosen(*make_method(options_of("auto:r=4:k=16", searching), d), Shape().at(16 * B, 20)), "topk");
  Machine selecting;  // a time for every position selected
  selecting.select_us = 1;
  EXPECT_EQ(chosen(*make_method(options_of("auto:r=4:k=16", selecting), d), Shape().at(16 * B, 20)), "dense");
}

TEST(AutoMethod, IntegerRowsTakeAsLongAsTheMachineSays) {
  Machine machine;
  machine.scan = 2;
  machine.tail = machine.sparq_tail = 1000;
  const Shape integers(offload::ColumnFormat::f16, offload::RowFormat::int4);
  const auto cache = integers.at(16 * B, 20);
  EXPECT_EQ(chosen(*make_method(options_of("auto:r=4:k=16", machine), d), cache), "dense") << "by their bytes";
  machine.integer_rows = 3;
  EXPECT_EQ(chosen(*make_method(options_of("auto:r=4:k=16", machine), d), cache), "sparq");
}

TEST(AutoMethod, HandsItsOptionsDown) {
  const auto method = make_method(options_of("auto:r=12:k=32,64:window=8:mean=off", {}), d);
  const MethodOptions by = method->plan(Shape().at(64 * B, 20), heads).by->options();
  EXPECT_EQ(method_label(by), "sparq r=12 k=32,64 w=8 mean=off");
  EXPECT_EQ(method_label(method->options()), "auto r=12 k=32,64 w=8 mean=off");
  EXPECT_EQ(make_method(options_of("auto:r=64", {}), d)->plan(Shape().at(64 * B, 20), heads).by->options().rank, d);
  EXPECT_TRUE(test::refuses([] { parse_method("auto:page=16", {}); }, {"auto does not use 'page'"}));
  EXPECT_TRUE(test::refuses([] { make_method(parse_method("auto:k=8:window=9", {}), d); }, {"--attn-window 9"}));
}

TEST(AutoMethod, BuiltInRatesTakeDenseForShortContextsAndSelectInLongOnes) {
  for (const char* device : {"cpu", "cuda"}) {
    MethodOptions options = parse_method("auto", {});
    options.rates = built_in_rates(device);
    const offload::BlockLayout layout({1, 8, 128, 4096});
    gpu::CacheView cache;
    cache.kv_heads = 8;
    cache.head_dim = 128;
    cache.store.layout = &layout;
    cache.tail.tokens = 2000;
    const auto method = make_method(options, 128);
    EXPECT_EQ(method->plan(cache, 32).by->options().name, "dense") << device;
    cache.store.tokens = cache.tail.position = 32 * 4096;
    EXPECT_EQ(method->plan(cache, 32).by->options().name, "sparq") << device;
  }
  EXPECT_NO_THROW(make_method(parse_method("auto", {}), 8)->count(Shape().at(2 * B, 3), heads)) << "without any";
}

TEST_F(MethodTest, AutoAttendsAndCountsAsTheMethodItChose) {
  make({.kv_heads = 2, .head_dim = 16, .block_tokens = 64, .stored = 256, .tail = 20});
  for (const bool slow_scan : {false, true}) {
    Machine machine;
    machine.scan = slow_scan ? 1e-3 : 1e3;
    const SharedMethod method = make_method(options_of("auto:r=4:k=40", machine), 16);
    const SharedMethod same = this->method(slow_scan ? "dense" : "sparq:r=4:k=40");
    const Output by_auto = attend(*method, nullptr);
    const Output expected = attend(*same, nullptr);
    EXPECT_EQ(by_auto.y, expected.y);
    EXPECT_EQ(by_auto.trace.positions, expected.trace.positions);
    EXPECT_EQ(by_auto.counters.bytes, expected.counters.bytes);
    EXPECT_EQ(by_auto.counters.elements, expected.counters.elements);
    EXPECT_EQ(method->count(view_of(0), query_heads).bytes, expected.counters.bytes);
    EXPECT_EQ(!method->plan(view_of(0), query_heads).selection.selects(), slow_scan);
  }
}

TEST(MethodLadder, CatchesMoreFromLevelToLevelUpToDense) {
  const MethodLadder ladder(options_of("sparq:r=4:k=1%,16", {}), d);
  const Shape shape;
  std::vector<std::string> labels;
  for (int level = 0; level <= ladder.exact_level(); ++level) {
    labels.push_back(method_label(ladder.judged_at(level, offload::ColumnFormat::f16, 0).options()));
  }
  EXPECT_EQ(labels.at(0), "sparq r=4 k=1%,16");
  EXPECT_EQ(labels.at(1), "sparq r=6 k=2%,32");
  EXPECT_EQ(labels.at(4), "sparq r=16 k=16%,256");
  EXPECT_EQ(labels.at(7), "sparq r=16 k=100%,2048");
  EXPECT_EQ(labels.at(8), "dense");
  EXPECT_EQ(MethodLadder(options_of("dense", {}), d).exact_level(), 0);
}

TEST(MethodLadder, LevelsThatWouldTakeLongerThanDenseAttentionAreNotWorthIt) {
  const Shape shape;
  const MethodLadder sparq(options_of("sparq:r=4:k=16", {}), d);
  EXPECT_EQ(sparq.worthwhile(shape.at(0, 30), heads), 0) << "the tail is attended to as a whole";
  const int few = sparq.worthwhile(shape.at(4 * B, 30), heads);
  const int more = sparq.worthwhile(shape.at(32 * B, 30), heads);
  EXPECT_GT(more, few);
  EXPECT_EQ(sparq.at(few, shape.at(4 * B, 30), heads).options().name, "dense");
  Machine slow;
  slow.scan = 1e-3;
  EXPECT_EQ(MethodLadder(options_of("sparq:r=4:k=16", slow), d).worthwhile(shape.at(4 * B, 30), heads), 1)
      << "what was asked for is worth it";
  EXPECT_EQ(MethodLadder(options_of("auto:r=4:k=16", slow), d).worthwhile(shape.at(4 * B, 30), heads), 0);
}

TEST(MethodLadder, EachLayerHasItsLevel) {
  const auto ladder = std::make_shared<const MethodLadder>(options_of("topk:k=16", {}), d);
  const SharedMethod method = make_leveled(ladder, {0, ladder->exact_level(), 1});
  const Shape shape;
  const auto in_layer = [&](int layer) {
    return method_label(method->plan(shape.at(64 * B, 20, layer), heads).by->options());
  };
  EXPECT_EQ(in_layer(0), "topk k=16");
  EXPECT_EQ(in_layer(1), "dense");
  EXPECT_EQ(in_layer(2), "dense") << "by rates at which the exact search is slow";
  EXPECT_EQ(method_label(method->options()), "topk k=16");
}

// As measured on heads with normalised keys: r of 4 and 6 components find little in layer 0, 9 enough.
std::shared_ptr<const ColumnRecall> blind_in_layer_0(float at_most) {
  auto recall = std::make_shared<ColumnRecall>();
  recall->settings = {{{offload::ColumnFormat::f16, 4}, {0.3f, 0.9f}},
                      {{offload::ColumnFormat::f16, 8}, {at_most, 0.9f}}};
  return recall;
}

TEST(AutoMethod, NeverTakesWhatIsMeasuredToBeBlindInALayer) {
  Machine machine;
  machine.sparq_tail = 4;
  MethodOptions options = options_of("auto:r=4:k=16", machine);
  const Shape shape;
  ASSERT_EQ(chosen(*make_method(options, d), shape.at(512 * B, 8)), "sparq");
  options.recall = blind_in_layer_0(0.4f);
  const SharedMethod method = make_method(options, d);
  EXPECT_EQ(chosen(*method, shape.at(512 * B, 8, 0)), "dense");
  EXPECT_EQ(chosen(*method, shape.at(512 * B, 8, 1)), "sparq");
}

TEST(AutoMethod, TakesTheFirstOfItsLevelsThatIsNotBlind) {
  Machine machine;
  machine.sparq_tail = 4;
  MethodOptions options = options_of("auto:r=4:k=16", machine);
  options.recall = blind_in_layer_0(0.6f);
  const SharedMethod method = make_method(options, d);
  const Shape shape;
  const auto rank = [&](int layer) { return method->plan(shape.at(2048 * B, 8, layer), heads).by->options().rank; };
  EXPECT_EQ(rank(0), 9);  // 4, 6, 9, ...
  EXPECT_EQ(rank(1), 4);
  const MethodLadder ladder(options, d);
  EXPECT_EQ(ladder.judged_at(0, offload::ColumnFormat::f16, 0).options().rank, 9);
  EXPECT_EQ(ladder.judged_at(0, offload::ColumnFormat::f16, 1).options().rank, 4);
}

}  // namespace
}  // namespace hayloft::runtime::ladder
