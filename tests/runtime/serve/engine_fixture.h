#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/serve/engine.h"

// An engine with the bundled model, and clients of it.
namespace hayloft::runtime::serve {

// Keeps what a client is told at the end; the client leaves, where it is to, when the first part of its prompt has been
// read.
struct Client : GenerationListener {
  void reading(std::int64_t, std::int64_t) override {
    if (leave) std::exchange(leave, {})();
  }
  void scored(std::vector<TokenChoice> prompt) override { choices = std::move(prompt); }
  void generated(GeneratedToken token) override {
    choices.push_back(std::move(token.choice));
    if (at_token) std::exchange(at_token, {})();
  }
  void finished(FinishReason, const std::string&, const Usage& told) override {
    usage = told;
    ended.set_value();
  }
  void failed(const Failure& failure) override {
    ADD_FAILURE() << failure.message;
    ended.set_value();
  }

  std::function<void()> leave;
  std::function<void()> at_token;  // when the first has come
  std::vector<TokenChoice> choices;
  Usage usage;
  std::promise<void> ended;
};

inline std::vector<std::int32_t> tokens(const Client& client) {
  std::vector<std::int32_t> all;
  for (const TokenChoice& choice : client.choices) all.push_back(choice.chosen.token);
  return all;
}

inline std::vector<float> logprobs(const Client& client) {
  std::vector<float> all;
  for (const TokenChoice& choice : client.choices) all.push_back(choice.chosen.logprob);
  return all;
}

class EngineTest : public ::testing::Test {
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

  // A saved context of so many sentences, in place of the one that is there.
  void save_book(const Contexts& contexts, int sentences) {
    std::string text;
    for (int i = 0; i < sentences; ++i) text += "the quiet hay lies in the loft ";
    IngestOptions reading;
    reading.session = options_.session;
    std::filesystem::remove(contexts.path("book"));
    ingest({model_, tokenizer_, path_}, arena_, text, contexts.path("book"), reading);
  }

  void ask_the_book() {
    request_.echo = false;
    request_.logprobs = -1;
    request_.context = "book";
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

}  // namespace hayloft::runtime::serve
