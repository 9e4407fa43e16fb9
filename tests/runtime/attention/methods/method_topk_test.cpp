#include "tests/support/method_fixture.h"

// Top-k attention (arXiv 2502.06766), whose search runs near the memory.
namespace hayloft::testing {
namespace {

class TopKTest : public MethodTest {
 protected:
  TopKTest() { make({.kv_heads = 2, .head_dim = 32, .stored = 320, .tail = 45, .seed = 3}); }
};

TEST_F(TopKTest, TakesTheBestOfEveryQueryHeadAndTheWholeTail) {
  const Output output = attend("topk:k=24");
  EXPECT_EQ(output.trace.lists, 4);
  EXPECT_EQ(output.trace.k, 24);
  EXPECT_TRUE(output.trace.alpha.empty());
  expect_consistent(output, false);
  for (int head = 0; head < query_heads; ++head) {
    const auto taken = attended(output, head);
    EXPECT_EQ(taken.size(), 24u + 45);
    expect_the_best(exact_logits(head), taken, 320, 1e-4);
  }
}

TEST_F(TopKTest, SumsTheSoftmaxesOverStoreAndTailWhereItSelectsPerKvHead) {
  // One query head attends to the tail nearly alone: its say in the store must shrink, which only the tail tells.
  for (int i = 0; i < 32; ++i) q[static_cast<std::size_t>(i)] = 4 * static_cast<float>(cache->key(0, 340, i));
  std::vector<std::vector<double>> logits;
  for (int head = 0; head < query_heads; ++head) logits.push_back(exact_logits(head));
  const Output output = attend("topk:k=24:select=kv-head");
  EXPECT_EQ(output.trace.lists, 2);
  expect_consistent(output, false);
  for (int head = 0; head < query_heads; ++head) {
    expect_the_best(group_softmax(kv_head(head), logits), attended(output, head), 320, 1e-5);
  }
}

TEST_F(TopKTest, AttendsToTheTailAloneWhileTheStoreIsEmpty) {
  make({.kv_heads = 2, .head_dim = 32, .tail = 45, .seed = 3});
  for (const char* text : {"topk:k=24", "topk:k=24:select=kv-head"}) {
    const Output output = attend(text);
    EXPECT_EQ(output.trace.k, 0);
    expect_consistent(output, false);
    EXPECT_EQ(attended(output, 0).size(), 45u);
  }
}

}  // namespace
}  // namespace hayloft::testing
