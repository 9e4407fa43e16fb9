#include "runtime/serve/stop_strings.h"

#include <gtest/gtest.h>

namespace hayloft::runtime::serve {
namespace {

TEST(StopStringsTest, HoldsBackWhatMayBecomeOneAndShowsItWhenItDoesNot) {
  StopStrings stop({"###", "END"});
  EXPECT_EQ(stop.push("hay #"), "hay ");
  EXPECT_EQ(stop.push("#"), "");
  EXPECT_EQ(stop.push(" loft E"), "## loft ");
  EXPECT_EQ(stop.push("N"), "");
  EXPECT_FALSE(stop.found());
  EXPECT_EQ(stop.rest(), "EN");
}

TEST(StopStringsTest, EndsBeforeTheFirstOfThemWhereverItIsSplit) {
  const std::string text = "one two END three ###";
  for (std::size_t split = 0; split <= text.size(); ++split) {
    StopStrings stop({"###", "END"});
    std::string shown = stop.push(text.substr(0, split));
    shown += stop.push(text.substr(split));
    EXPECT_EQ(shown, "one two ") << split;
    EXPECT_TRUE(stop.found());
    EXPECT_EQ(stop.push("more"), "");
  }
}

TEST(StopStringsTest, EmptyOnesStopNothing) {
  StopStrings stop({""});
  EXPECT_EQ(stop.push("text"), "text");
  EXPECT_FALSE(stop.found());
}

// Special tokens, as they would be written.
TEST(StopStringsTest, FindsWhatIsHiddenAndNeverShowsIt) {
  StopStrings stop({"<end>", "hay<b>x"});
  EXPECT_EQ(stop.push("one "), "one ");
  EXPECT_EQ(stop.push_hidden("<other>"), "");
  EXPECT_EQ(stop.push("hay"), "");  // may begin a stop string
  EXPECT_EQ(stop.push_hidden("<b>"), "");
  EXPECT_EQ(stop.push("y "), "hayy ");
  EXPECT_EQ(stop.push_hidden("<end>"), "");
  EXPECT_TRUE(stop.found());

  StopStrings across({"hay<b>x"});
  EXPECT_EQ(across.push("two hay"), "two ");
  EXPECT_EQ(across.push_hidden("<b>"), "");
  EXPECT_EQ(across.push("xy"), "");
  EXPECT_TRUE(across.found());

  StopStrings held({"hay<b>x"});
  EXPECT_EQ(held.push("hay"), "");
  EXPECT_EQ(held.push_hidden("<b"), "");
  EXPECT_EQ(held.rest(), "hay");
}

}  // namespace
}  // namespace hayloft::runtime::serve
