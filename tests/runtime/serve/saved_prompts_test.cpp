#include "runtime/serve/saved_prompts.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/decode/load_tokenizer.h"
#include "tests/support/golden_models.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::serve {
namespace {

const std::filesystem::path model_folder = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
constexpr int chunk = 64;

class SavedPromptsTest : public ::testing::Test {
 protected:
  SavedPrompts saved(std::uint64_t most_bytes = std::uint64_t{1} << 30, const char* method = "dense") {
    MethodOptions options;
    options.name = method;
    return {source_,
            arena_,
            session_options_,
            make_method(options, model_.config().head_dim),
            {folder_ / "prompts", most_bytes, 2 * chunk, 0, checkpoints_}};
  }
  static std::vector<std::int32_t> prompt(int tokens, int seed) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>(10 + (i * 7 + i / 9 * 3 + static_cast<std::size_t>(seed)) % 200);
    return ids;
  }
  static void read_to(Session& session, const std::vector<std::int32_t>& tokens, std::size_t end) {
    const auto at = static_cast<std::size_t>(session.tokens());
    session.append(std::span(tokens).subspan(at, end - at));
  }
  // All of a prompt, as the engine reads and saves it, up to `chunks` of it.
  void read(SavedPrompts& prompts, const std::vector<std::int32_t>& tokens, std::size_t chunks) {
    std::optional<Session> session = prompts.open(tokens);
    if (!session) session.emplace(model_, arena_, session_options_);
    SavedPrompts::Handle file = prompts.begin(tokens, static_cast<std::size_t>(session->tokens()));
    for (auto done = static_cast<std::size_t>(session->tokens()); done < chunks * chunk;) {
      done += chunk;
      read_to(*session, tokens, done);
      prompts.advance(file, *session, std::span(tokens).first(done), false);
      prompts.flush();  // a checkpoint after each chunk: the next is handed over when this one is written
    }
  }

  int checkpoints_ = 0;
  test::TemporaryFolder folder_;
  offload::Topology topology_;
  offload::Threads threads_{1};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  Model model_{model_folder, *backend_};
  Tokenizer tokenizer_ = load_tokenizer(model_folder);
  offload::Arena arena_{topology_, {.budget_bytes = std::uint64_t{256} << 20}};
  ModelSource source_{model_, tokenizer_, model_folder};
  SessionOptions session_options_{.cache = {.block_tokens = 128}, .chunk_tokens = chunk};
};

TEST_F(SavedPromptsTest, WhatWasReadBeforeTheServerWasKilledIsNotReadAgain) {
  const std::vector<std::int32_t> tokens = prompt(5 * chunk + 10, 1);
  {
    SavedPrompts prompts = saved();
    read(prompts, tokens, 3);  // and no further: the handle is let go of without a word
  }
  {
    SavedPrompts prompts = saved();
    EXPECT_EQ(prompts.longest(tokens), 3u * chunk);
    read(prompts, tokens, 5);
    EXPECT_EQ(prompts.figures().files, 1) << "goes on in its file";
  }
  SavedPrompts prompts = saved();
  EXPECT_EQ(prompts.longest(tokens), 5u * chunk);
  std::optional<Session> session = prompts.open(tokens);
  ASSERT_TRUE(session);
  Session alone(model_, arena_, session_options_);
  read_to(alone, tokens, 5 * chunk);
  EXPECT_EQ(session->step(tokens.back()), alone.step(tokens.back()));
  EXPECT_FALSE(prompts.begin(tokens, 5 * chunk)) << "saved already";
}

TEST_F(SavedPromptsTest, APromptWithAnotherEndGoesOnFromTheLastCheckpointThatIsKeptBeforeIt) {
  const std::vector<std::int32_t> tokens = prompt(6 * chunk + 10, 1);
  std::vector<std::int32_t> other = tokens;
  for (std::size_t i = 4 * chunk + 20; i < other.size(); ++i) other[i] = 300;
  {
    SavedPrompts prompts = saved();
    read(prompts, tokens, 6);
    EXPECT_EQ(prompts.longest(other), 0u) << "the last checkpoint alone is kept";
  }
  checkpoints_ = 4;
  {
    SavedPrompts prompts = saved();
    std::vector<std::int32_t> third = prompt(6 * chunk + 10, 2), fourth = third;
    read(prompts, third, 6);
    fourth[4 * chunk + 20] = 300;
    EXPECT_EQ(prompts.longest(fourth), 4u * chunk);
    fourth[2 * chunk + 20] = 300;
    EXPECT_EQ(prompts.longest(fourth), 0u) << "before all that are kept";
  }
  SavedPrompts prompts = saved();  // again from the disk
  std::vector<std::int32_t> fourth = prompt(6 * chunk + 10, 2);
  fourth[4 * chunk + 20] = 300;
  EXPECT_EQ(prompts.longest(fourth), 4u * chunk);
  std::optional<Session> session = prompts.open(fourth);
  ASSERT_TRUE(session);
  Session alone(model_, arena_, session_options_);
  read_to(alone, fourth, 4 * chunk);
  EXPECT_EQ(session->step(fourth.back()), alone.step(fourth.back()));
  read(prompts, fourth, 6);
  EXPECT_EQ(prompts.figures().files, 3) << "a file of its own";
  EXPECT_EQ(prompts.longest(prompt(6 * chunk + 10, 2)), 6u * chunk) << "the other is as it was";
}

TEST_F(SavedPromptsTest, WhatWasDecodedApproximatelySaysSoAndIsNothingToAServerThatAttendsExactly) {
  const Model model(goldens / "llama", *backend_);
  const ModelSource source{model, tokenizer_, model_folder};  // whose files say which model it is
  session_options_.cache = {.block_tokens = 32, .window = 16};
  const auto prompts_by = [&](const char* method) {
    return std::make_unique<SavedPrompts>(
        source, arena_, session_options_, make_method(parse_method(method, {}), model.config().head_dim),
        SavedPromptOptions{folder_ / "decoded", std::uint64_t{1} << 30, 2 * chunk, 0, 0});
  };
  std::vector<std::int32_t> tokens = prompt(6 * chunk + 10, 1);
  for (std::int32_t& token : tokens) token %= model.config().vocab_size;
  {
    const auto prompts = prompts_by("topk:k=4");
    Session session(model, arena_, session_options_);
    session.set_method(make_method(parse_method("topk:k=4", {}), model.config().head_dim));
    session.append(std::span(tokens).first(150));
    for (std::size_t at = 150; at < 3 * chunk; ++at) session.step(tokens[at]);  // an answer; more is asked behind it
    SavedPrompts::Handle file = prompts->begin(tokens, 3 * chunk);
    session.append(std::span(tokens).subspan(3 * chunk, 3 * chunk));
    ASSERT_TRUE(file);
    prompts->advance(file, session, std::span(tokens).first(6 * chunk), false);
    prompts->flush();
  }
  EXPECT_EQ(prompts_by("dense")->longest(tokens), 0u);
  const auto prompts = prompts_by("topk:k=4");
  ASSERT_EQ(prompts->longest(tokens), 6u * chunk);
  EXPECT_EQ(prompts->open(tokens)->approximate_tokens().first, 150);
}

TEST_F(SavedPromptsTest, AFileThatAnotherServerPutInThePlaceOfOneIsNotTakenForIt) {
  const std::vector<std::int32_t> tokens = prompt(5 * chunk + 10, 1);
  SavedPrompts prompts = saved();
  read(prompts, tokens, 5);
  const std::filesystem::path file = folder_ / "prompts" / "000001.hay";
  ASSERT_TRUE(std::filesystem::remove(file));
  SavedPrompts others = saved();
  read(others, prompt(5 * chunk + 10, 2), 5);
  ASSERT_TRUE(std::filesystem::exists(file));
  EXPECT_EQ(prompts.longest(tokens), 5u * chunk);
  EXPECT_FALSE(prompts.open(tokens));
}

TEST_F(SavedPromptsTest, ServersOverOneFolderLeaveTheFilesOfEachOther) {
  const std::vector<std::int32_t> first = prompt(5 * chunk + 10, 1), second = prompt(5 * chunk + 10, 2);
  SavedPrompts prompts = saved(), others = saved();
  Session session(model_, arena_, session_options_);
  SavedPrompts::Handle file = prompts.begin(first, 0);  // begins to read, and saves when the other has
  read(others, second, 5);
  read_to(session, first, 5 * chunk);
  prompts.advance(file, session, std::span(first).first(5 * chunk), false);
  prompts.flush();
  EXPECT_EQ(prompts.figures().failures + others.figures().failures, 0u);
  const SavedPrompts later = saved();
  EXPECT_EQ(later.longest(first), 5u * chunk);
  EXPECT_EQ(later.longest(second), 5u * chunk);
}

TEST_F(SavedPromptsTest, OtherBeginningsAndShortPromptsAreNotFound) {
  SavedPrompts prompts = saved();
  const std::vector<std::int32_t> tokens = prompt(4 * chunk + 1, 1);
  read(prompts, tokens, 4);
  EXPECT_EQ(prompts.longest(prompt(4 * chunk + 1, 2)), 0u);
  EXPECT_EQ(prompts.longest(std::span(tokens).first(4 * chunk)), 0u) << "its last token is for a step";
  EXPECT_EQ(prompts.longest(prompt(9 * chunk, 1)), 4u * chunk);
  EXPECT_FALSE(prompts.begin(prompt(2 * chunk, 3), 0)) << "short";
  EXPECT_FALSE(prompts.begin(prompt(4 * chunk, 3), 5)) << "no whole chunks";
}

TEST_F(SavedPromptsTest, TheLeastRecentlyUsedGoWhereTheDiskIsFull) {
  std::uint64_t one = 0;
  {
    SavedPrompts prompts = saved();
    read(prompts, prompt(4 * chunk + 1, 1), 4);
    one = prompts.figures().bytes;
    read(prompts, prompt(4 * chunk + 1, 2), 4);
    EXPECT_EQ(prompts.figures().files, 2);
  }
  SavedPrompts prompts = saved(2 * one + one / 2);
  EXPECT_TRUE(prompts.open(prompt(4 * chunk + 1, 1)));
  read(prompts, prompt(4 * chunk + 1, 3), 4);
  EXPECT_EQ(prompts.figures().files, 2);
  EXPECT_EQ(prompts.longest(prompt(4 * chunk + 1, 1)), 4u * chunk);
  EXPECT_EQ(prompts.longest(prompt(4 * chunk + 1, 2)), 0u);
  EXPECT_EQ(prompts.longest(prompt(4 * chunk + 1, 3)), 4u * chunk);
}

TEST_F(SavedPromptsTest, DamagedFilesAreForgotten) {
  const std::vector<std::int32_t> tokens = prompt(4 * chunk + 1, 1);
  {
    SavedPrompts prompts = saved();
    read(prompts, tokens, 4);
  }
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "prompts")) {
    std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) / 2);
  }
  SavedPrompts prompts = saved();
  EXPECT_FALSE(prompts.open(tokens));
  read(prompts, tokens, 4);
  EXPECT_TRUE(prompts.open(tokens));
}

TEST_F(SavedPromptsTest, NothingIsSavedWhereThereIsNoRoomOrTheMethodHasToSeeThePrompt) {
  EXPECT_FALSE(saved(0).begin(prompt(4 * chunk, 1), 0));
  EXPECT_FALSE(saved(1000).begin(prompt(4 * chunk, 1), 0));
  EXPECT_FALSE(saved(std::uint64_t{1} << 30, "h2o").begin(prompt(4 * chunk, 1), 0));
}

}  // namespace
}  // namespace hayloft::runtime::serve
