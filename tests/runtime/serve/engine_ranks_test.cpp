#include <gtest/gtest.h>

#include <future>

#include "gpu/make_backend.h"
#include "runtime/attention/attention_rates.h"
#include "runtime/attention/column_recall.h"
#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/context/saved_shards.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/serve/engine.h"
#include "runtime/serve/ranks/follow.h"
#include "tests/support/temporary_folder.h"

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
  explicit Machine(cluster::Communicator* ranks = nullptr, const std::filesystem::path& folder = {})
      : contexts(folder) {
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
  Contexts contexts;
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

// `auto` that leaves dense attention for sparq as soon as it may.
SharedMethod eager_auto(int head_dim) {
  MachineRates machine;
  machine.source = "a test";
  machine.margin = 0;
  machine.rates = [](int, int, std::uint64_t) {
    AttentionRates rates;
    rates.column_scans.fill(1000);
    rates.row_gather = rates.tail = rates.sparq_tail = 1000;
    rates.dense = 1e-3;
    rates.exact_scan = rates.row_scan = 1e-6;
    return rates;
  };
  MethodOptions options;
  options.name = "auto";
  options.k = Budgets({16, 0});
  options.rates = std::make_shared<const MachineRates>(machine);
  return make_method(options, head_dim);
}

// Saves a context, read by one machine, with that as what its columns find.
void save_book(Machine& machine, const ColumnRecall& recall) {
  const std::filesystem::path path = machine.contexts.path("book");
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The hay lies in the loft. ";
  IngestOptions reading;
  reading.session = machine.options.session;
  ingest(machine.source(), machine.arena, text, path, reading);
  const std::vector<offload::SnapshotAttachment> beside{{std::string(column_recall_name), save_column_recall(recall)}};
  offload::SnapshotWriter writer = offload::SnapshotWriter::open_to_append(path);
  const offload::Snapshot saved = writer.snapshot();
  const Session session(machine.model, machine.arena, as_read(saved, reading.session), saved);
  save_checkpoint(writer, session, saved.tokens(), beside, true);
  writer.finish(path);
}

// By all that was measured they find too little.
const ColumnRecall blind{100, 4, 8, {{{offload::ColumnFormat::f16, 16}, {0.0F}}}, {}};

const ColumnRecall seeing{100, 4, 8, {{{offload::ColumnFormat::f16, 16}, {1.0F}}}, {}};

TEST(EngineOverRanks, FilesWhoseColumnsFindOtherThingsAreRefusedOnAllRanks) {
  const test::TemporaryFolder folder, other;
  Machine first(nullptr, folder.path()), second(nullptr, other.path());
  save_book(first, blind);
  save_book(second, seeing);
  const std::int64_t tokens = offload::Snapshot::open(first.contexts.path("book")).cached_tokens();
  cluster::run_local_ranks(2, [&](cluster::Communicator& own) {
    EXPECT_EQ(open_over_ranks(own, first.contexts.path("book")).cached_tokens(), tokens);
    const Contexts& contexts = own.rank() == 0 ? first.contexts : second.contexts;
    EXPECT_THROW(open_over_ranks(own, contexts.path("book")), Error);
  });
}

TEST(EngineOverRanks, AllRanksKnowWhatTheColumnsOfASavedContextFind) {
  const test::TemporaryFolder folder;
  Machine alone(nullptr, folder.path());
  save_book(alone, blind);
  GenerationRequest question = request(20, 37, 8);
  question.context = "book";
  alone.options.method = eager_auto(alone.model.config().head_dim);
  Engine one(alone.source(), alone.arena, alone.contexts, alone.options);
  const auto expected = answers(one, {question});
  ASSERT_EQ(expected[0]->tokens.size(), 8u);
  cluster::run_local_ranks(2, [&](cluster::Communicator& own) {
    Machine machine(&own, folder.path());
    const SharedMethod method = eager_auto(machine.model.config().head_dim);
    // Both take dense attention: if one took sparq, each would wait for the other's messages in vain.
    const Session opened =
        open_saved(machine.source(), machine.arena, machine.contexts.path("book"), machine.options.session, method);
    Session session = opened.fork();
    session.step(5);
    EXPECT_EQ(session.methods_used(), (std::map<std::string, std::int64_t>{{"dense", 1}}));
    if (own.rank() > 0) {
      return follow(machine.source(), machine.arena, machine.contexts, machine.options.session, method);
    }
    machine.options.method = method;
    Engine engine(machine.source(), machine.arena, machine.contexts, machine.options);
    EXPECT_EQ(answers(engine, {question})[0]->tokens, expected[0]->tokens);
    EXPECT_EQ(engine.figures().failed, 0u);
  });
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
