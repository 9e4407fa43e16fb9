#include "tests/support/method_fixture.h"

// Methods that score every key exactly: the oracle of SparQ's step 1, and FlexGen.
namespace hayloft::testing {
namespace {

using runtime::Kind;
using runtime::Place;

class OracleTest : public MethodTest {
 protected:
  OracleTest() { make({.kv_heads = 2, .head_dim = 32, .stored = 320, .tail = 45, .seed = 3}); }

  std::vector<std::vector<double>> logits() const {
    std::vector<std::vector<double>> all;
    for (int head = 0; head < query_heads; ++head) all.push_back(exact_logits(head));
    return all;
  }
};

TEST_F(OracleTest, TakesTheBestPerKvHeadByTheGroupsSoftmaxAndKnowsItsMass) {
  const Output output = attend("oracle:k=40:window=10");
  EXPECT_EQ(output.trace.lists, 2);
  EXPECT_EQ(output.trace.k, 30) << "k counts the window in, and the tail is attended besides";
  expect_consistent(output, true);
  for (int head = 0; head < query_heads; ++head) {
    const auto taken = attended(output, head);
    EXPECT_EQ(taken.size(), 30u + 45);
    // f32 logits of 32 products below 20, and sums of 365 shares below 1.
    expect_the_best(group_softmax(kv_head(head), logits()), taken, 320, 1e-5);
    EXPECT_NEAR(output.trace.alpha[static_cast<std::size_t>(head)], mass(exact_logits(head), taken), 1e-4);
  }
}

TEST_F(OracleTest, TakesTheBestOfEveryQueryHeadWhereAskedTo) {
  const Output output = attend("oracle:k=24:window=0:select=query-head");
  EXPECT_EQ(output.trace.lists, 4);
  expect_consistent(output, true);
  for (int head = 0; head < query_heads; ++head) {
    const auto taken = attended(output, head);
    expect_the_best(exact_logits(head), taken, 320, 1e-4);
    EXPECT_NEAR(output.trace.alpha[static_cast<std::size_t>(head)], mass(exact_logits(head), taken), 1e-4);
  }
}

TEST_F(OracleTest, LeavesTheMeanValueOutWhereAskedTo) {
  expect_consistent(attend("oracle:k=24:mean=off"), false);
}

TEST_F(OracleTest, IsSparqWithEveryComponent) {
  // Their logits are added up in the same order.
  const Output oracle = attend("oracle:k=40");
  const Output sparq = attend("sparq:r=32:k=40");
  EXPECT_EQ(oracle.trace.positions, sparq.trace.positions);
  for (int head = 0; head < query_heads; ++head) {
    EXPECT_NEAR(oracle.trace.alpha[static_cast<std::size_t>(head)], sparq.trace.alpha[static_cast<std::size_t>(head)],
                1e-5);
  }
}

TEST_F(OracleTest, ReadsRowsWhereColumnsAreIntegers) {
  const std::vector<std::int32_t> exact = attend("oracle:k=40").trace.positions;
  make({.kv_heads = 2, .head_dim = 32, .stored = 320, .tail = 45, .seed = 3, .columns = offload::ColumnFormat::int4});
  const Output output = attend("oracle:k=40");
  EXPECT_EQ(output.trace.positions, exact);
  EXPECT_EQ(output.counters.at(Place::near, Kind::rows), 2u * 320 * 64) << "K's half of every row";
}

TEST_F(OracleTest, CountsEveryKeyNearTheMemoryAndKRowsOverTheLink) {
  runtime::Counters counters = attend("oracle:k=40:window=10").counters;
  const std::uint64_t S = 365, d = 32, attended = 30 + 45;
  EXPECT_EQ(counters.elements, 2 * (S * d + 2 * attended * d + 4 * d));
  EXPECT_EQ(counters.at(Place::near, Kind::columns), 2 * d * 320 * 2);
  EXPECT_EQ(counters.at(Place::link, Kind::rows), 2 * 30 * 4 * d);
  EXPECT_EQ(counters.at(Place::device, Kind::rows), 2 * 45 * 4 * d);
  EXPECT_EQ(counters.positions_scored, 2 * S);
}

TEST_F(OracleTest, TakesKOfItsLayer) {
  EXPECT_EQ(attend("oracle:k=80,40,20:window=0", 1).trace.k, 40);
  EXPECT_EQ(attend("flexgen:k=80,40,20", 2).trace.k, 20);
}

TEST_F(OracleTest, FlexGenAttendsToTheBestAndLeavesTheRestOut) {
  const Output output = attend("flexgen:k=40");
  EXPECT_EQ(output.trace.k, 40);
  EXPECT_TRUE(output.trace.alpha.empty());
  expect_consistent(output, false);
  for (int head = 0; head < query_heads; ++head) {
    expect_the_best(group_softmax(kv_head(head), logits()), attended(output, head), 320, 1e-5);
  }
}

TEST_F(OracleTest, FlexGenCountsAllKeysOverTheLinkAndTheValuesOfK) {
  runtime::Counters counters = attend("flexgen:k=40").counters;
  const std::uint64_t S = 365, d = 32, attended = 40 + 45;
  EXPECT_EQ(counters.elements, 2 * (S * d + attended * d + 2 * d));
  EXPECT_EQ(counters.at(Place::link, Kind::columns), 2 * d * 320 * 2);
  EXPECT_EQ(counters.at(Place::link, Kind::rows), 2 * 40 * 4 * d);
  EXPECT_EQ(counters.total(Place::near), 0u);
}

TEST_F(OracleTest, FlexGenRefusesColumnsThatAreNotExact) {
  make({.head_dim = 32, .stored = 128, .columns = offload::ColumnFormat::int8});
  EXPECT_THROW(attend("flexgen:k=40"), Error);
}

TEST_F(OracleTest, EverythingChosenIsDense) {
  for (const char* text : {"oracle:k=365", "flexgen:k=365"}) {
    SCOPED_TRACE(text);
    const Output output = attend(text);
    EXPECT_EQ(attended(output, 0), range(0, 365));
    expect_consistent(output, false);
  }
}

}  // namespace
}  // namespace hayloft::testing
