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

// Lets go the head of a message, and the first word behind it.
void push_message(StopStrings& stop) {
  stop.push_hidden("<|channel|>", true);
  stop.push_head("analysis");
  stop.push_hidden("<|message|>", true);
  stop.push("Hay");
}

// Nobody sees a head, so its text stops nothing unless a whole special token is named with it.
TEST(StopStringsTest, HeadsAndPartsOfSpecialTokensStopNothing) {
  for (const std::string text : {"message", "analysis", "<", "|>", "|>analysis", "sis<|", "e|>H"}) {
    StopStrings stop({text});
    push_message(stop);
    EXPECT_FALSE(stop.found()) << text;
    stop.push(" message analysis<|>analysis<|e|>H");
    EXPECT_TRUE(stop.found()) << text;
    EXPECT_EQ(stop.which(), text);
  }
  for (const std::string text :
       {"<|message|>", "analysis<|message|>", "<|channel|>ana", "<|channel|>analysis<|message|>H"}) {
    StopStrings stop({text});
    push_message(stop);
    EXPECT_TRUE(stop.found()) << text;
  }
}

// Readers know special tokens by their whole text, however much has been held back.
TEST(StopStringsTest, EachSpecialTokenIsARunOfItsOwn) {
  StopStrings stop({"<|end|><|start|>x", ">y"}, true);
  std::vector<TextRun> runs;
  const auto collect = [&] {
    for (const TextRun& run : stop.runs()) runs.push_back(run);
  };
  for (const char* token : {"<|end|>", "<|start|>"}) {
    stop.push_hidden(token);
    collect();
  }
  stop.push_head("assistant");
  collect();
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].text, "<|end|>");
  EXPECT_EQ(runs[1].text, "<|start|>");
  EXPECT_TRUE(runs[1].special);
  EXPECT_EQ(runs[2].text, "assistant");
  EXPECT_FALSE(runs[2].special);

  StopStrings part({"end|>x"}, true);  // begins inside of one
  EXPECT_EQ(part.push("hay"), "hay");
  part.runs();
  part.push_hidden("<|end|>");
  EXPECT_TRUE(part.runs().empty());
  part.push("y");
  runs = part.runs();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].text, "<|end|>");
  StopStrings found({"end|>x"}, true);
  found.push_hidden("<|end|>");
  EXPECT_EQ(found.push("x"), "");
  EXPECT_TRUE(found.found());
}

}  // namespace
}  // namespace hayloft::runtime::serve
