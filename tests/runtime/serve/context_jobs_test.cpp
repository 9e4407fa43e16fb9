#include "runtime/serve/context_jobs.h"

#include "tests/runtime/serve/engine_fixture.h"
#include "tests/support/golden_models.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::serve {
namespace {

TEST_F(EngineTest, AContextThatIsRemovedWhileItIsReadLeavesNothingInTheWayOfAnother) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  ContextJobs jobs({model_, tokenizer_, path_}, arena_, contexts, options_.session, [](const std::string&) {});
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "the quiet hay lies in the loft ";
  ContextProgress last;
  const auto on_its_way = [&] {
    const std::vector<ContextProgress> all = jobs.progress();
    if (!all.empty()) last = all.front();
    return !all.empty() && last.problem.empty();
  };
  jobs.create("book", text);
  while (on_its_way() && last.done == 0) {
  }
  EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(jobs.cancel("book"));
  while (on_its_way()) {
  }
  EXPECT_EQ(last.problem, "");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_FALSE(jobs.cancel("book"));

  jobs.create("book", "another text");
  while (on_its_way()) {
  }
  EXPECT_EQ(last.problem, "");
  EXPECT_TRUE(contexts.contains("book"));
}

TEST_F(EngineTest, WhatAnotherProgramHasReadOfAnotherTextStaysWhereAContextIsRemoved) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  IngestOptions options;
  options.session = options_.session;
  options.checkpoint_seconds = 0;
  std::string theirs;
  for (int i = 0; i < 2000; ++i) theirs += "the other barn is full of straw ";
  EXPECT_ANY_THROW(ingest({model_, tokenizer_, path_}, arena_, theirs, contexts.path("book"), options,
                          [](std::int64_t done, std::int64_t) {
                            if (done > 0) throw std::runtime_error("stopped");
                          }));
  ASSERT_FALSE(std::filesystem::is_empty(folder.path()));
  ContextJobs jobs({model_, tokenizer_, path_}, arena_, contexts, options_.session, [](const std::string&) {});
  jobs.create("book", "the quiet hay lies in the loft");
  EXPECT_TRUE(jobs.cancel("book"));
  while (!jobs.progress().empty() && jobs.progress().front().problem.empty()) {
  }
  jobs.cancel("book");  // where it had been given up already
  EXPECT_FALSE(std::filesystem::is_empty(folder.path()));
}

// Tells it before hours of reading.
TEST_F(EngineTest, ATextBehindWhichNoQuestionHasRoomIsNotRead) {
  const Model model(goldens / "llama", *backend_);
  ASSERT_EQ(model.config().max_positions, 256);
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  ContextJobs jobs({model, tokenizer_, path_}, arena_, contexts, options_.session, [](const std::string&) {});
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the quiet hay lies in the loft ";
  jobs.create("book", text);
  std::vector<ContextProgress> all;
  while ((all = jobs.progress()).empty() || all.front().problem.empty()) {
    ASSERT_FALSE(contexts.contains("book"));
  }
  EXPECT_NE(all.front().problem.find("no room for a question"), std::string::npos) << all.front().problem;
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace hayloft::runtime::serve
