#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "gpu/cpu/attention.h"

// Partial attention, merged.
namespace hayloft {
namespace {

TEST(MergeStates, OfTwoPartsIsTheSoftmaxOverBoth) {
  std::vector<float> a{2 * 3.0f};  // two positions with score 1 and value 3
  std::vector<float> b{5.0f};      // one with score 4 and value 5
  gpu::AttentionState into{a.data(), 1, 2};
  gpu::merge_states(into, {b.data(), 4, 1}, 1);
  const double e1 = std::exp(1.0);
  const double e4 = std::exp(4.0);
  float y = 0;
  gpu::finish_state(into, 1, &y);
  EXPECT_NEAR(y, (6 * e1 + 5 * e4) / (2 * e1 + e4), 5 * 4 * std::numeric_limits<float>::epsilon());
}

TEST(MergeStates, WithAnEmptyPartChangesNothing) {
  std::vector<float> a{7.0f};
  std::vector<float> none{0.0f};
  gpu::AttentionState state{a.data(), -300, 2};
  gpu::merge_states(state, {none.data()}, 1);
  EXPECT_EQ(a[0], 7.0f);
  EXPECT_EQ(state.max, -300);
  EXPECT_EQ(state.sum, 2);
  gpu::AttentionState empty{none.data()};
  gpu::merge_states(empty, state, 1);
  EXPECT_EQ(none[0], 7.0f);
  EXPECT_EQ(empty.sum, 2);
}

TEST(MergeStates, OfTwoEmptyPartsIsEmpty) {
  std::vector<float> a{0.0f};
  std::vector<float> b{0.0f};
  gpu::AttentionState into{a.data()};
  gpu::merge_states(into, {b.data()}, 1);
  float y = 1;
  gpu::finish_state(into, 1, &y);
  EXPECT_EQ(y, 0.0f);
}

}  // namespace
}  // namespace hayloft
