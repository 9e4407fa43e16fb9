#include "runtime/serve/engine.h"

#include <gtest/gtest.h>

#include <future>

#include "gpu/make_backend.h"
#include "runtime/decode/load_tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::serve {
namespace {

// What a client is told at the end; it leaves, where it is to, when the first part of its prompt has been read.
struct Client : GenerationListener {
  void reading(std::int64_t, std::int64_t) override {
    if (leave) std::exchange(leave, {})();
  }
  void scored(std::vector<TokenChoice> prompt) override { choices = std::move(prompt); }
  void generated(GeneratedToken token) override { choices.push_back(std::move(token.choice)); }
  void finished(FinishReason, const std::string&, const Usage& told) override {
    usage = told;
    ended.set_value();
  }
  void failed(const Failure& failure) override {
    ADD_FAILURE() << failure.message;
    ended.set_value();
  }

  std::function<void()> leave;
  std::vector<TokenChoice> choices;
  Usage usage;
  std::promise<void> ended;
};

std::vector<float> logprobs(const Client& client) {
  std::vector<float> all;
  for (const TokenChoice& choice : client.choices) all.push_back(choice.chosen.logprob);
  return all;
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    options_.session.chunk_tokens = 64;
    options_.method = make_method({}, model_.config().head_dim);
    options_.kept_reading = 256;
    request_.echo = true;
    request_.logprobs = 0;
    request_.max_tokens = 2;
    request_.ignore_end = true;
    for (int i = 0; i < 500; ++i) request_.tokens.push_back(5 + i * 37 % 101);
  }

  // Asks and waits for the answer.
  static void ask(Engine& engine, const GenerationRequest& request, const std::shared_ptr<Client>& client) {
    engine.submit(request, client);
    client->ended.get_future().wait();
  }

  const std::filesystem::path path_ = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  offload::Topology topology_;
  offload::Threads threads_{1};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  Model model_{path_, *backend_};
  Tokenizer tokenizer_ = load_tokenizer(path_);
  offload::Arena arena_{topology_, {.budget_bytes = std::uint64_t{64} << 20}};
  Contexts contexts_{{}};
  EngineOptions options_;
  GenerationRequest request_;
};

TEST_F(EngineTest, WhatWasScoredForAClientThatLeftIsNotReadAgain) {
  const auto alone = std::make_shared<Client>();
  {
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
    ask(engine, request_, alone);
  }
  ASSERT_EQ(alone->choices.size(), request_.tokens.size() - 1 + 2);

  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  const auto gone = std::make_shared<Client>(), again = std::make_shared<Client>();
  std::shared_ptr<Job> job;
  std::promise<void> submitted;
  gone->leave = [&] {
    submitted.get_future().wait();
    job->cancel();
  };
  job = engine.submit(request_, gone);
  submitted.set_value();
  while (engine.figures().cancelled == 0) {  // it is read to its end first
  }
  ask(engine, request_, again);
  EXPECT_EQ(again->usage.cached_tokens, static_cast<std::int64_t>(request_.tokens.size()));
  EXPECT_EQ(logprobs(*again), logprobs(*alone));
  EXPECT_EQ(engine.figures().prompt_tokens, request_.tokens.size());
  EXPECT_TRUE(gone->choices.empty());
}

TEST_F(EngineTest, AClientThatAsksAgainGoesOnWhereItsPromptIsBeingScored) {
  const auto alone = std::make_shared<Client>(), gone = std::make_shared<Client>(), again = std::make_shared<Client>();
  {
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
    ask(engine, request_, alone);
  }
  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  std::shared_ptr<Job> job;
  std::promise<void> submitted;
  gone->leave = [&] {
    submitted.get_future().wait();
    job->cancel();
    engine.submit(request_, again);
  };
  job = engine.submit(request_, gone);
  submitted.set_value();
  again->ended.get_future().wait();
  EXPECT_EQ(again->usage.cached_tokens, options_.session.chunk_tokens);
  EXPECT_EQ(logprobs(*again), logprobs(*alone));
  EXPECT_EQ(engine.figures().cancelled, 1u);
}

TEST_F(EngineTest, ASessionOfAContextThatHasBeenReplacedIsNotKept) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the quiet hay lies in the loft ";
  IngestOptions reading;
  reading.session = options_.session;
  ingest({model_, tokenizer_, path_}, arena_, text, contexts.path("book"), reading);
  request_.echo = false;
  request_.logprobs = -1;
  request_.context = "book";

  for (const bool replaced : {false, true}) {
    Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
    const auto client = std::make_shared<Client>();
    if (replaced) client->leave = [&] { engine.forget_context("book"); };
    ask(engine, request_, client);
    while (!engine.idle()) {
    }
    EXPECT_EQ(engine.figures().kept_sessions > 0, !replaced);
  }
}

}  // namespace
}  // namespace hayloft::runtime::serve
