#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "runtime/attention/attender.h"
#include "runtime/peers/agreement.h"

// A process alone is the one rank of its contexts: what is said to it comes back, and nothing is counted.
namespace hayloft::runtime::cluster {
namespace {

TEST(Alone, IsTheOnlyRankAndHasEveryBlock) {
  EXPECT_EQ(alone().ranks(), 1);
  EXPECT_TRUE(alone().first());
  EXPECT_FALSE(alone().several());
  EXPECT_TRUE(alone().shard().alone());
}

TEST(Alone, IsToldWhatItSays) {
  EXPECT_EQ(told(alone(), 17), 17);
  EXPECT_EQ(of_all(alone(), 17), std::vector<int>{17});
  EXPECT_EQ(summed(alone(), {1.5, -2}), (std::vector<double>{1.5, -2}));
  EXPECT_EQ(summed(alone(), {}), std::vector<double>());
  EXPECT_EQ(alone().ledger().total().messages, 0u);
}

TEST(Alone, ThrowsWhatItsWorkThrows) {
  EXPECT_THROW(together(alone(), [] { throw std::runtime_error("no memory"); }), std::runtime_error);
  try {
    together(alone(), [] { fail("no such model"); });
    FAIL() << "went on";
  } catch (const SharedError&) {
    FAIL() << "there is nobody to share it with";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no such model");
  }
}

TEST(Alone, IsWhereASessionAttendsUnlessSaidOtherwise) {
  EXPECT_EQ(&local_attender()->peers(), &alone());
  EXPECT_TRUE(local_attender()->has_whole_layers());
}

}  // namespace
}  // namespace hayloft::runtime::cluster
