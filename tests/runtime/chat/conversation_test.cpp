#include "runtime/chat/conversation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include "gpu/make_backend.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/tokenizer/end_of_turn.h"

namespace hayloft::runtime {
namespace {

// The special token keeps what was drawn apart from what the template writes, as chat templates do.
constexpr const char* plain =
    "{% for m in messages %}{{ m.role }}<|end_of_text|>{{ m.content }}<|end_of_text|>{% endfor %}"
    "assistant<|end_of_text|>";
// Leaves earlier answers out, as models do with what they thought.
constexpr const char* forgetful =
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}assistant<|end_of_text|>(said){% endif "
    "%}<|end_of_text|>"
    "{% endfor %}assistant<|end_of_text|>";

const std::string end = "<|end_of_text|>";
const std::string answer = "assistant" + end;  // its beginning

std::string turn(const std::string& role, const std::string& content) {
  return role + end + content + end;
}

class ConversationTest : public ::testing::Test {
 protected:
  Session session() { return Session(model_, arena_, {.cache = {.block_tokens = 16, .window = 8}, .chunk_tokens = 7}); }
  Conversation conversation(const char* source, const std::string& system = "") {
    return Conversation(session(), tokenizer_, ChatTemplate::from_source(source, "test"), system);
  }

  // Asks, and has a few tokens drawn; the last of them does not go through the session.
  std::string ask(Conversation& conversation, const std::string& message, int tokens = 3) {
    std::int32_t token = conversation.ask(message);
    Sampler sampler({});
    std::vector<std::int32_t> drawn;
    for (int i = 0; i < tokens; ++i) drawn.push_back(token = conversation.session().next(token, sampler));
    const std::string text = tokenizer_.decode(drawn);
    conversation.answered(drawn, text);
    return text;
  }

  // The session gives the logits that a new one gives, which has read the whole text at once.
  void expect_reads(Conversation& conversation, const std::string& message, const std::string& text) {
    const std::vector<std::int32_t> tokens = tokenizer_.encode_prompt(text);
    Session fresh = session();
    fresh.append(std::span(tokens).first(tokens.size() - 1));
    EXPECT_EQ(conversation.tokens_with(message), static_cast<std::int64_t>(tokens.size()));
    const std::int32_t last = conversation.ask(message);
    ASSERT_EQ(last, tokens.back());
    ASSERT_EQ(conversation.session().tokens(), fresh.tokens());
    const std::vector<float> expected = fresh.step(last);
    const std::vector<float> got = conversation.session().step(last);
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-3) << i;
  }

  std::filesystem::path folder_ = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  offload::Topology topology_;
  offload::Threads threads_{2};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = 64 << 20}};
  Model model_{folder_, *backend_};
  Tokenizer tokenizer_ = load_tokenizer(folder_);
};

TEST_F(ConversationTest, ReadsOnlyWhatIsNew) {
  Conversation talk = conversation(plain, "be brief");
  const std::string first = ask(talk, "the hay");
  const std::string second = ask(talk, "and the straw");
  EXPECT_EQ(talk.read_again(), 0);
  expect_reads(talk, "where",
               turn("system", "be brief") + turn("user", "the hay") + turn("assistant", first) +
                   turn("user", "and the straw") + turn("assistant", second) + turn("user", "where") + answer);
  EXPECT_EQ(talk.read_again(), 0);
}

TEST_F(ConversationTest, GoesBackWhereTheTemplateRewritesAnAnswer) {
  Conversation talk = conversation(forgetful);
  ask(talk, "the hay");
  const std::int64_t held = talk.session().tokens();
  ask(talk, "and the straw");
  EXPECT_EQ(talk.read_again(), held);  // all of it, for nothing was kept
  expect_reads(talk, "where",
               "the hay" + end + turn("assistant", "(said)") + "and the straw" + end + turn("assistant", "(said)") +
                   "where" + end + answer);
  // From then on only what follows the fork: the prompt's last token, and two of the three that were drawn.
  EXPECT_EQ(talk.read_again(), 3);
}

TEST_F(ConversationTest, AMessageThatCannotBeReadLeavesItAsItWas) {
  Conversation talk = conversation(plain);
  const std::string first = ask(talk, "the hay");
  EXPECT_THROW(talk.ask("lost", [](auto, auto) { throw std::runtime_error("stopped"); }), std::runtime_error);
  expect_reads(talk, "where", turn("user", "the hay") + turn("assistant", first) + turn("user", "where") + answer);
  EXPECT_EQ(talk.read_again(), 0);
}

TEST_F(ConversationTest, GoesOnBehindAContext) {
  Session root = session();
  const std::string text = "The hay is in the loft.";
  root.append(tokenizer_.encode_prompt(text));
  Conversation talk(std::move(root), tokenizer_, ChatTemplate::from_source(plain, "test"));
  const std::string first = ask(talk, "where");
  const std::int64_t before = talk.tokens_with("and");
  EXPECT_EQ(talk.ask("and"), tokenizer_.token(end));
  EXPECT_EQ(talk.session().tokens() + 1, before);
  EXPECT_EQ(before,
            static_cast<std::int64_t>(tokenizer_.encode_prompt(text).size() +
                                      tokenizer_
                                          .encode_continuation(turn("user", "where") + turn("assistant", first) +
                                                               turn("user", "and") + answer)
                                          .size()));
}

TEST_F(ConversationTest, KnowsTheTokensThatEndATurn) {
  EXPECT_EQ(end_of_turn_tokens(tokenizer_), std::vector<std::int32_t>{tokenizer_.token("<|end_of_text|>")});
}

// gpt-oss writes several messages in a turn, each ended by <|end|>, which ends a turn of Phi's.
TEST(EndOfTurn, IsNotTheEndOfOneOfSeveralMessages) {
  const auto tokens = [](std::vector<std::string_view> known) {
    return end_of_turn_tokens([known](std::string_view name) {
      const auto found = std::ranges::find(known, name);
      return found == known.end() ? -1 : static_cast<std::int32_t>(found - known.begin());
    });
  };
  EXPECT_EQ(tokens({"<|end|>", "<|endoftext|>"}), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(tokens({"<|end|>", "<|return|>", "<|call|>"}), (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(tokens({"<|end|>", "<|return|>"}), (std::vector<std::int32_t>{0, 1}));
}

}  // namespace
}  // namespace hayloft::runtime
