#include <gtest/gtest.h>

#include <future>

#include "gpu/make_backend.h"
#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/serve/engine.h"
#include "runtime/serve/ranks/follow.h"

// The engine over ranks, each a thread of this process.
namespace hayloft::runtime::serve {
namespace {

struct RankClient : GenerationListener {
  void reading(std::int64_t, std::int64_t) override {}
  void scored(std::vector<TokenChoice>) override {}
  void generated(GeneratedToken token) override {
    tokens.push_back(token.choice.chosen.token);
    if (at_token) std::exchange(at_token, {})();
  }
  void finished(FinishReason, const std::string&, const Usage& told) override {
    usage = told;
    ended.set_value();
  }
  void failed(const Failure& told) override {
    failure = told;
    ended.set_value();
  }

  std::function<void()> at_token;  // when the first has come
  std::vector<std::int32_t> tokens;
  Usage usage;
  Failure failure{0, ""};
  std::promise<void> ended;
};

// One rank's, or that of one machine.
struct Machine {
  explicit Machine(cluster::Communicator* ranks = nullptr) {
    options.session.chunk_tokens = 64;
    options.session.cache.block_tokens = 32;
    if (ranks != nullptr) options.session.attend_by(cluster::rank_attender(*ranks));
    options.method = make_method({}, model.config().head_dim);
  }
  ModelSource source() { return {model, tokenizer, path}; }

  std::filesystem::path path = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  offload::Topology topology;
  offload::Threads threads{1};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  Model model{path, *backend};
  Tokenizer tokenizer = load_tokenizer(path);
  offload::Arena arena{topology, {.budget_bytes = std::uint64_t{64} << 20}};
  Contexts contexts{{}};
  EngineOptions options;
};

GenerationRequest request(int prompt, int seed, int tokens) {
  GenerationRequest request;
  for (int i = 0; i < prompt; ++i) request.tokens.push_back(5 + i * seed % 101);
  request.max_tokens = tokens;
  request.ignore_end = true;
  return request;
}

// Asks all at once.
std::vector<std::shared_ptr<RankClient>> answers(Engine& engine, const std::vector<GenerationRequest>& requests) {
  std::vector<std::shared_ptr<RankClient>> clients;
  for (const GenerationRequest& each : requests) {
    clients.push_back(std::make_shared<RankClient>());
    engine.submit(each, clients.back());
  }
  for (const auto& client : clients) client->ended.get_future().wait();
  return clients;
}

// Runs what the first rank does with an engine while the others follow it.
void over_ranks(int ranks, const std::function<void(Engine&)>& work, std::uint64_t host_bytes = 0) {
  cluster::run_local_ranks(ranks, [&](cluster::Communicator& own) {
    Machine machine(&own);
    if (own.rank() > 0) {
      return follow(machine.source(), machine.arena, machine.contexts, machine.options.session, machine.options.method);
    }
    machine.options.host_bytes = host_bytes;
    Engine engine(machine.source(), machine.arena, machine.contexts, machine.options);
    work(engine);
  });
}

TEST(EngineOverRanks, RequestsAtOnceAreAnsweredAsByOneMachine) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(request(70 + 60 * i, 37 + i, 12));
  requests[1].sampling = {.temperature = 0.8F, .seed = 3};
  requests[2].logprobs = 1;
  requests.push_back(requests[3]);  // waits for what the one before it reads
  Machine alone;
  Engine one(alone.source(), alone.arena, alone.contexts, alone.options);
  const auto expected = answers(one, requests);
  for (const int ranks : {2, 3}) {
    over_ranks(ranks, [&](Engine& engine) {
      const auto got = answers(engine, requests);
      for (std::size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(got[i]->tokens, expected[i]->tokens) << i << " over " << ranks;
      }
      EXPECT_EQ(engine.figures().failed, 0u);
      // Kept for what begins alike.
      const auto again = answers(engine, {requests[3]});
      EXPECT_EQ(again[0]->tokens, expected[3]->tokens);
      EXPECT_GT(again[0]->usage.cached_tokens, 100);
    });
  }
}

TEST(EngineOverRanks, WhatAClientLeavesIsLeftByAllRanks) {
  over_ranks(2, [](Engine& engine) {
    const auto gone = std::make_shared<RankClient>();
    std::promise<std::shared_ptr<Job>> submitted;
    gone->at_token = [&] { submitted.get_future().get()->cancel(); };
    submitted.set_value(engine.submit(request(100, 37, 100000), gone));
    const auto next = answers(engine, {request(100, 41, 8)});
    EXPECT_EQ(next[0]->tokens.size(), 8u);
    while (engine.figures().cancelled == 0) {
    }
  });
}

TEST(EngineOverRanks, RequestsAreHeldToTheLeastMemoryOfARank) {
  over_ranks(
      2,
      [](Engine& engine) {
        const auto refused = answers(engine, {request(100, 37, 100000)});
        EXPECT_EQ(refused[0]->failure.status, 507);
        EXPECT_EQ(answers(engine, {request(100, 37, 8)})[0]->tokens.size(), 8u);
      },
      std::uint64_t{8} << 20);
}

TEST(Script, IsReadAsItWasWritten) {
  Script script;
  const std::vector<std::int32_t> tokens{5, -1, 7};
  script.add(Deed::append).add(3U).add(tokens).add(std::string_view("book"));
  ScriptReader reader(script.take());
  EXPECT_EQ(reader.deed(), Deed::append);
  EXPECT_EQ(reader.number(), 3u);
  EXPECT_EQ(reader.tokens(), tokens);
  EXPECT_EQ(reader.text(), "book");
  EXPECT_TRUE(reader.ended());
  EXPECT_THROW(reader.number(), std::logic_error);
}

}  // namespace
}  // namespace hayloft::runtime::serve
