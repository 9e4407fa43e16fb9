#include "runtime/serve/session_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gpu/make_backend.h"
#include "offload/snapshot/writer.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::serve {
namespace {

class SessionPoolTest : public ::testing::Test {
 protected:
  Session session() { return Session(model_, arena_); }
  // One of so many tokens, in small blocks.
  LedSession read(int count, int number) {
    SessionOptions options;
    options.cache.block_tokens = 64;
    options.cache.window = 16;
    Session session(model_, arena_, options);
    session.append(tokens(count, 0, number));
    return session;
  }
  // So many tokens, of which those from `differs` on are others than of any other number.
  static std::vector<std::int32_t> tokens(int count, int differs, int number) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(count), 5);
    for (int i = differs; i < count; ++i) all[static_cast<std::size_t>(i)] = 100 + number;
    return all;
  }

  offload::Topology topology_;
  offload::Threads threads_{1};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  Model model_{std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model", *backend_};
  offload::Arena arena_{topology_, {.budget_bytes = std::uint64_t{64} << 20}};
  SessionPool pool_;
};

TEST_F(SessionPoolTest, TheLongestThatBeginsARequestIsFound) {
  pool_.put("", tokens(10, 10, 0), session());
  pool_.put("", tokens(20, 20, 0), session());
  pool_.put("", tokens(30, 25, 1), session());
  pool_.put("book", tokens(40, 40, 0), session());
  const auto found = [&](const std::string& context, const std::vector<std::int32_t>& request) {
    return pool_.longest(context, request).tokens;
  };
  EXPECT_EQ(found("", tokens(50, 50, 0)), 20u);
  EXPECT_EQ(found("", tokens(50, 25, 1)), 30u);
  EXPECT_EQ(found("", tokens(20, 20, 0)), 10u) << "its last token is for a step";
  EXPECT_EQ(found("", tokens(50, 0, 2)), 0u);
  EXPECT_EQ(found("book", tokens(50, 50, 0)), 40u);
  pool_.drop_context("book");
  EXPECT_EQ(found("book", tokens(50, 50, 0)), 0u);
}

TEST_F(SessionPoolTest, AConversationGoesOnFromWhereItPartsFromAnAnswer) {
  Session answered = session();
  answered.append(tokens(30, 30, 0));
  pool_.put("", tokens(30, 30, 0), answered.fork(), 20);
  const auto found = [&](int differs, bool conversation) {
    return pool_.longest("", tokens(50, differs, 1), conversation).tokens;
  };
  EXPECT_EQ(found(30, true), 30u);
  EXPECT_EQ(found(25, true), 25u);
  EXPECT_EQ(found(20, true), 20u);
  EXPECT_EQ(found(19, true), 0u) << "another conversation";
  EXPECT_EQ(found(25, false), 0u) << "no conversation";
  EXPECT_EQ(pool_.longest("", tokens(25, 25, 0), true).tokens, 24u) << "its last token is for a step";
  EXPECT_EQ(pool_.longest("", tokens(50, 25, 1), true).fork().tokens(), 25);
  pool_.put("", tokens(10, 10, 0), session());
  EXPECT_EQ(found(25, true), 25u);
  EXPECT_EQ(found(19, true), 10u);
}

TEST_F(SessionPoolTest, TheSameTokensAreKeptOnce) {
  pool_.put("", tokens(10, 10, 0), session());
  pool_.put("", tokens(10, 10, 0), session());
  EXPECT_EQ(pool_.size(), 1u);
}

TEST_F(SessionPoolTest, ShortRequestsOnTheSideDoNotDriveOutABook) {
  pool_.put("", tokens(2000, 0, 0), session());
  for (int title = 1; title <= 20; ++title) pool_.put("", tokens(40, 0, title), session());
  for (int title = 1; title <= 20; ++title) EXPECT_TRUE(pool_.drop_one());
  ASSERT_EQ(pool_.size(), 1u);
  EXPECT_TRUE(pool_.longest("", tokens(2001, 0, 0)).entry);
  EXPECT_TRUE(pool_.drop_one());
  EXPECT_FALSE(pool_.drop_one());
}

TEST_F(SessionPoolTest, QuestionsToAnOpenedContextDoNotDriveItOut) {
  Session context = session();
  context.append(tokens(600, 0, 0));
  pool_.put("book", {}, context.fork());
  for (int question = 1; question <= 5; ++question) pool_.put("book", tokens(40, 0, question), context.fork());
  for (int question = 1; question <= 5; ++question) EXPECT_TRUE(pool_.drop_one());
  const SessionPool::Entry* const left = pool_.longest("book", tokens(10, 0, 9)).entry;
  ASSERT_TRUE(left);
  EXPECT_TRUE(left->tokens.empty());
}

// The pool counts as much as the arena has given out, after each session that goes.
TEST_F(SessionPoolTest, MemoryThatSessionsShareCountsOnce) {
  {
    LedSession book = read(600, 0);
    LedSession question = book.fork(), longer = book.fork(), other = read(300, 2);
    question.append(tokens(20, 0, 1), false);
    longer.append(tokens(300, 0, 1), true);  // its tail has not shrunk
    pool_.put("", tokens(620, 600, 1), question.fork());
    pool_.put("", tokens(600, 0, 0), std::move(book));
    pool_.put("", tokens(900, 600, 1), longer.fork_at(longer.tokens()));
    pool_.put("", tokens(900, 600, 2), std::move(longer));
    pool_.put("", tokens(300, 0, 2), std::move(other));
  }
  ASSERT_GT(arena_.used_bytes(), 0u);
  do {
    EXPECT_EQ(pool_.held().host_bytes(), arena_.used_bytes()) << pool_.size();
    EXPECT_EQ(pool_.held().tail_bytes() > 0, pool_.size() > 0);
    EXPECT_EQ(pool_.bytes(), pool_.held().host_bytes() + pool_.held().tail_bytes());
  } while (pool_.drop_one());
  EXPECT_EQ(pool_.bytes(), 0u);
}

TEST_F(SessionPoolTest, WhatIsMappedTakesNoMemory) {
  LedSession context = read(600, 0);
  const std::uint64_t blocks = arena_.used_bytes();
  ASSERT_GT(blocks, 0u);
  const std::uint64_t tail = context.cache().device_bytes();
  context.set_opened(true);
  pool_.put("book", {}, context.fork());
  EXPECT_EQ(pool_.bytes(), tail);
  LedSession question = context.fork();
  question.append(tokens(200, 0, 1), false);
  EXPECT_GT(arena_.used_bytes(), blocks);
  const std::uint64_t added = arena_.used_bytes() - blocks + question.cache().device_bytes();
  pool_.put("book", tokens(200, 0, 1), std::move(question));
  EXPECT_EQ(pool_.bytes(), tail + added);
  context.set_opened(false);  // copied
  pool_.put("book", {}, context.fork());
  EXPECT_EQ(pool_.bytes(), blocks + tail + added);
}

// A method's state of an opened context counts once for all sessions that have added nothing to it.
TEST_F(SessionPoolTest, WhatMethodsKeepCounts) {
  const SharedMethod pages = make_method(parse_method("pages", {}), model_.config().head_dim);
  const SharedMethod exact = make_method({}, model_.config().head_dim);
  SessionPool pool({exact, pages, pages});
  LedSession context = read(600, 0);
  context.prepare(*pages);
  const std::uint64_t kept = context.here().state(*pages)->bytes();
  ASSERT_GT(kept, 0u);
  const std::uint64_t tail = context.cache().device_bytes(), blocks = arena_.used_bytes();
  pool.put("", tokens(600, 0, 0), context.fork());
  EXPECT_EQ(pool.bytes(), blocks + tail + kept);
  pool.drop_one();
  context.set_opened(true);
  pool.put("book", {}, context.fork());
  pool.put("book", tokens(40, 0, 1), context.fork());
  EXPECT_EQ(pool.bytes(), 2 * tail + kept);
  LedSession question = context.fork();
  question.append(tokens(200, 0, 1), false);
  question.prepare(*pages);
  const std::uint64_t before = pool.held().host_bytes();
  const std::uint64_t added = arena_.used_bytes() - blocks + question.here().state(*pages)->bytes();
  pool.put("book", tokens(200, 0, 1), std::move(question));
  EXPECT_EQ(pool.held().host_bytes(), before + added);
}

// Nothing is shared but the file by sessions that have been opened each for itself, though they lie at one address.
TEST_F(SessionPoolTest, WhatMethodsKeepOfAContextThatIsOpenedTwiceCountsTwice) {
  const SharedMethod pages = make_method(parse_method("pages", {}), model_.config().head_dim);
  const test::TemporaryFolder folder;
  const LedSession book = read(600, 0);
  std::vector<offload::TailImage> tails;
  const std::vector<offload::SnapshotTail> owned = book.cache().tails();
  for (const offload::SnapshotTail& tail : owned) tails.push_back(tail.image());
  const offload::SnapshotDescription description{{}, book.cache().store().shape(), model_.config().layers, ""};
  offload::save_snapshot(folder / "book.hay", description, book.cache().store(), tokens(600, 0, 0), tails);
  const offload::Snapshot snapshot = offload::Snapshot::open(folder / "book.hay");
  SessionPool pool({pages});
  for (int number = 0; number < 2; ++number) {
    LedSession opened(Session(model_, arena_, SessionOptions(), snapshot));
    opened.set_opened(true);
    opened.prepare(*pages);
    const std::uint64_t before = pool.held().host_bytes();
    const std::uint64_t kept = opened.here().state(*pages)->bytes();
    ASSERT_GT(kept, 0u);
    pool.put("book", tokens(number, 0, 0), std::move(opened));
    EXPECT_EQ(pool.held().host_bytes(), before + kept) << number;
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve
