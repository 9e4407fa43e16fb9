#include "offload/text/utf8.h"

#include <gtest/gtest.h>

namespace hayloft {
namespace {

TEST(Utf8Stream, HoldsBackTheBytesOfASplitCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80\xC3"), "\U0001F600");
  EXPECT_EQ(stream.push("\xA9"), "\u00E9");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Utf8Stream, ReplacesWhatCanNoLongerBecomeValid) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("a\xFF"), "\uFFFDa\uFFFD");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace hayloft
