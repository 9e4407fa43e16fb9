#include "runtime/serve/read_history.h"

#include <gtest/gtest.h>

#include "runtime/serve/changing_head.h"

// Tests what is read again, and the lines that are known to make it so.
namespace hayloft::runtime::serve {
namespace {

std::vector<std::int32_t> counted(std::int32_t first, std::int32_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(ReadHistory, TellsWhyTokensAreReadAgain) {
  ReadHistory history;
  const std::vector<std::int32_t> prompt = counted(0, 1000);
  EXPECT_EQ(history.compare("", prompt, 0, 512).let_go, 0u);
  history.add("", prompt);
  std::vector<std::int32_t> longer = prompt;
  longer.push_back(7);
  EXPECT_EQ(history.compare("", longer, 512, 512).chunk, 488u);
  EXPECT_EQ(history.compare("", longer, 0, 512).let_go, 1000u);
  EXPECT_EQ(history.compare("book", longer, 0, 512).let_go, 0u);
  EXPECT_EQ(history.compare("", longer, 1000, 512).chunk, 0u);

  // Another line of five tokens at the head, in place of three.
  std::vector<std::int32_t> changed = counted(5000, 5);
  changed.insert(changed.end(), prompt.begin() + 3, prompt.end());
  const ReadAgain again = history.compare("", changed, 0, 512);
  EXPECT_EQ(again.changed, 997u);
  EXPECT_EQ(again.let_go + again.chunk, 0u);
  EXPECT_EQ(history.compare("", counted(9000, 1000), 0, 512).changed, 0u);
}

TEST(ReadHistory, AnAnswerIsPartOfWhatWasRead) {
  ReadHistory history;
  history.add("", counted(0, 100));
  history.add("", counted(0, 120));  // with its answer
  history.add("book", counted(0, 130));
  EXPECT_EQ(history.compare("", counted(0, 150), 100, 512).chunk, 20u);
  EXPECT_EQ(history.compare("", counted(0, 150), 120, 512).chunk, 0u);
}

TEST(ChangingHead, TheBillingHeaderGoes) {
  std::string text = "x-anthropic-billing-header: cc_version=2.1.37; cch=a1b2c;\nYou are an agent.";
  EXPECT_TRUE(drop_changing_head(text));
  EXPECT_EQ(text, "You are an agent.");
  for (const std::string other : {"You are. x-anthropic-billing-header: a\n", "", "\nx-anthropic-billing-header: a"}) {
    text = other;
    EXPECT_FALSE(drop_changing_head(text));
    EXPECT_EQ(text, other);
  }
  text = "X-Anthropic-Billing-Header: alone";
  EXPECT_TRUE(drop_changing_head(text));
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace hayloft::runtime::serve
