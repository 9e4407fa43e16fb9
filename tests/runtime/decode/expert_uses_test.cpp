#include "runtime/decode/expert_uses.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/decode/router.h"

namespace hayloft::runtime {
namespace {

using Pass = std::vector<int>;

int held_of(KeptExperts& kept, const Pass& pass) {
  return kept.ask(pass);
}

TEST(KeptExperts, AreThoseThatAreAskedForMostOften) {
  KeptExperts kept(8, 2);
  EXPECT_EQ(held_of(kept, {1, 5}), 0);
  EXPECT_EQ(held_of(kept, {1, 5}), 2);
  EXPECT_EQ(held_of(kept, {2, 3}), 0);  // once, which is less than twice
  EXPECT_EQ(held_of(kept, {1, 5}), 2);
  for (int i = 0; i < 4; ++i) kept.ask(Pass{2});
  EXPECT_EQ(held_of(kept, {2, 5}), 2);  // in place of 1, the first of two that were asked for less
}

TEST(KeptExperts, AreAllOfThemWhereThereIsRoomAndNoneWithout) {
  KeptExperts all(6, 6), none(6, 0);
  std::mt19937 random(1);
  std::vector<bool> asked(6);
  for (int pass = 0; pass < 50; ++pass) {
    const int expert = static_cast<int>(random() % 6);
    EXPECT_EQ(held_of(all, {expert}), asked[static_cast<std::size_t>(expert)] ? 1 : 0);
    EXPECT_EQ(held_of(none, {expert}), 0);
    asked[static_cast<std::size_t>(expert)] = true;
  }
}

TEST(ExpertsOf, AreThoseThatATokenGoesThrough) {
  const std::vector<ExpertTokens> chosen{{0, {0, 2}, {1, 1}}, {3, {1}, {1}}, {7, {0, 1, 2}, {1, 1, 1}}};
  EXPECT_EQ(experts_of(0, chosen), (std::vector<int>{0, 7}));
  EXPECT_EQ(experts_of(1, chosen), (std::vector<int>{3, 7}));
  EXPECT_TRUE(experts_of(3, chosen).empty());
}

}  // namespace
}  // namespace hayloft::runtime
