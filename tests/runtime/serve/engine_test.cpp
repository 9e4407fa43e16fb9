#include "runtime/serve/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "gpu/make_backend.h"
#include "runtime/decode/load_tokenizer.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::serve {
namespace {

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

std::vector<std::int32_t> tokens(const Client& client) {
  std::vector<std::int32_t> all;
  for (const TokenChoice& choice : client.choices) all.push_back(choice.chosen.token);
  return all;
}

std::vector<float> logprobs(const Client& client) {
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

// What has been read of prompts for clients that have left, while one that waits is answered.
TEST_F(EngineTest, PromptsOfClientsThatHaveLeftWaitForThoseThatHaveNot) {
  struct Reader : Client {
    void reading(std::int64_t done, std::int64_t total) override {
      ++chunks;
      Client::reading(done, total);
    }
    std::atomic<int> chunks = 0;
  };
  request_.echo = false;
  request_.logprobs = -1;
  options_.parallel = 2;
  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  constexpr int many = 6;
  std::vector<std::shared_ptr<Reader>> gone;
  std::vector<std::shared_ptr<Job>> jobs(many);
  std::promise<void> submitted;
  const std::shared_future<void> all = submitted.get_future();
  for (int i = 0; i < many; ++i) {
    GenerationRequest request = request_;
    request.tokens.front() = 7 + i;  // they begin differently
    gone.push_back(std::make_shared<Reader>());
    gone.back()->leave = [&, all] {
      all.wait();
      for (const auto& job : jobs) job->cancel();
    };
    jobs[static_cast<std::size_t>(i)] = engine.submit(request, gone.back());
  }
  const auto chunks = [&] {
    int sum = 0;
    for (const auto& reader : gone) sum += reader->chunks;
    return sum;
  };
  const auto stays = std::make_shared<Reader>();
  int when_it_was_read = -1;
  stays->leave = [&] { when_it_was_read = chunks(); };
  int when_it_was_answered = -1;
  stays->at_token = [&] { when_it_was_answered = chunks(); };
  GenerationRequest last = request_;
  last.tokens.front() = 90;
  const auto job = engine.submit(last, stays);
  submitted.set_value();
  stays->ended.get_future().wait();
  EXPECT_EQ(tokens(*stays).size(), 2u);
  EXPECT_LE(when_it_was_read, 2);  // its place was not held
  EXPECT_EQ(when_it_was_answered, when_it_was_read);
  while (!engine.idle()) {
  }
  EXPECT_GE(chunks(), 8);  // then those that had begun are read to the end
  EXPECT_EQ(engine.figures().cancelled, static_cast<std::uint64_t>(many));
}

// Of an engine that is busy, whose queue would stay full.
TEST_F(EngineTest, WhoHasLeftTheQueueMakesRoomInIt) {
  request_.echo = false;
  request_.logprobs = -1;
  request_.max_tokens = 50000;
  request_.tokens.resize(40);
  options_.parallel = 1;
  options_.queue = 2;
  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  const auto busy = std::make_shared<Client>();
  std::promise<void> decoding;
  busy->at_token = [&] { decoding.set_value(); };
  const auto job = engine.submit(request_, busy);
  decoding.get_future().wait();
  for (int i = 0; i < 2; ++i) engine.submit(request_, std::make_shared<Client>())->cancel();
  std::shared_ptr<Job> next;
  while (!next)
    next = engine.submit(request_, std::make_shared<Client>());  // refused until a round has seen them leave
  EXPECT_EQ(engine.figures().active, 1);
  next->cancel();
  job->cancel();
  while (!engine.idle()) {
  }
}

TEST_F(EngineTest, WhoAsksAgainTakesOverWhatHasBeenReadOfThePrompt) {
  request_.echo = false;
  request_.logprobs = -1;
  options_.parallel = 1;
  const auto alone = std::make_shared<Client>(), gone = std::make_shared<Client>(), again = std::make_shared<Client>();
  {
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
    ask(engine, request_, alone);
  }
  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  std::shared_ptr<Job> job, second;
  std::promise<void> submitted;
  gone->leave = [&] {
    submitted.get_future().wait();
    job->cancel();
    second = engine.submit(request_, again);
  };
  job = engine.submit(request_, gone);
  submitted.set_value();
  again->ended.get_future().wait();
  EXPECT_EQ(again->usage.cached_tokens, options_.session.chunk_tokens);
  EXPECT_EQ(tokens(*again), tokens(*alone));
  EXPECT_EQ(engine.figures().prompt_tokens, request_.tokens.size() - 1);
}

TEST_F(EngineTest, ASessionOfAContextThatHasBeenReplacedIsNotKept) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  save_book(contexts, 100);
  ask_the_book();
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

TEST_F(EngineTest, WhatIsOpenedWhileAContextIsReplacedDoesNotStay) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  save_book(contexts, 100);
  ask_the_book();
  Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
  const auto before = std::make_shared<Client>(), after = std::make_shared<Client>();
  engine.forget_context("book", [&] {
    ask(engine, request_, before);
    while (!engine.idle()) {
    }
    save_book(contexts, 50);
  });
  const std::int64_t book = offload::Snapshot::open(contexts.path("book")).token_count();
  ask(engine, request_, after);
  EXPECT_GT(before->usage.prompt_tokens, after->usage.prompt_tokens);
  EXPECT_EQ(after->usage.prompt_tokens, book + static_cast<std::int64_t>(request_.tokens.size()));
}

TEST_F(EngineTest, QuotesAreOfTheTextThatWasReadThoughItsContextIsGone) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  save_book(contexts, 100);
  ask_the_book();
  request_.audit = true;
  request_.quotes = 3;
  request_.max_tokens = 40;
  const auto client = std::make_shared<Client>();
  client->leave = [&] { contexts.remove("book"); };
  Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
  ask(engine, request_, client);
  ASSERT_TRUE(client->usage.audit);
  EXPECT_EQ(client->choices.size(), 40u);
  for (const Quote& quote : client->usage.audit->quotes) EXPECT_NE(quote.text.find("hay"), std::string::npos);
}

// More than are multiplied with a matrix at once; one client leaves in the middle.
TEST_F(EngineTest, AnswersMadeTogetherAreThoseOfEachAlone) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  save_book(contexts, 100);
  ask_the_book();
  options_.parallel = 11;
  std::vector<GenerationRequest> requests(11, request_);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].tokens.resize(20 + 3 * i);
    requests[i].tokens.back() = static_cast<std::int32_t>(7 + i);
    requests[i].max_tokens = static_cast<int>(12 + i);
    requests[i].logprobs = i % 3 == 0 ? 0 : -1;
    requests[i].sampling.temperature = i % 2 == 0 ? 0 : 1;
    if (i % 4 == 3) requests[i].context.clear();
  }
  std::vector<std::shared_ptr<Client>> alone, together;
  for (const GenerationRequest& request : requests) {
    Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
    ask(engine, request, alone.emplace_back(std::make_shared<Client>()));
  }
  Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
  requests[5].max_tokens = 20000;
  std::vector<std::shared_ptr<Job>> jobs(requests.size());
  std::promise<void> submitted;
  const std::shared_future<void> all = submitted.get_future();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    together.push_back(std::make_shared<Client>());
    together[i]->leave = [all] { all.wait(); };
    if (i == 5) together[i]->at_token = [&] { jobs[5]->cancel(); };
    jobs[i] = engine.submit(requests[i], together[i]);
  }
  submitted.set_value();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (i == 5) continue;
    together[i]->ended.get_future().wait();
    EXPECT_EQ(tokens(*together[i]), tokens(*alone[i])) << i;
    EXPECT_EQ(logprobs(*together[i]), logprobs(*alone[i])) << i;
  }
  while (!engine.idle()) {
  }
  EXPECT_EQ(engine.figures().cancelled, 1u);
  EXPECT_EQ(tokens(*together[5]).front(), tokens(*alone[5]).front());
}

// Attends to nothing: the device is lost when a step is planned.
class LosesTheDevice : public Method {
 public:
  using Method::Method;
  SelectionPlan plan_selection(const gpu::CacheView&, int) const override {
    throw gpu::DeviceLost("CUDA: the device is lost to this process");
  }
  Counters count_planned(const gpu::CacheView&, const SelectionPlan&) const override { return {}; }
};

struct RefusedClient : Client {
  void failed(const Failure& failure) override {
    why = failure;
    ended.set_value();
  }
  Failure why;
};

// What follows the last whole chunk of the prompt too, which is read once.
TEST_F(EngineTest, AnswersToOnePromptAreForksOfOneReading) {
  request_.echo = false;
  request_.max_tokens = 6;
  request_.sampling.temperature = 1;
  const auto seeded = [&](std::uint64_t seed) {
    GenerationRequest request = request_;
    request.sampling.seed = seed;
    return request;
  };
  std::vector<std::vector<std::int32_t>> expected;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
    const auto alone = std::make_shared<Client>();
    ask(engine, seeded(seed), alone);
    expected.push_back(tokens(*alone));
  }

  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  std::vector<std::shared_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(std::make_shared<Client>());
  // The others are there when the first has read a chunk of its prompt.
  clients[0]->leave = [&] {
    for (std::uint64_t seed = 1; seed < 4; ++seed) engine.submit(seeded(seed), clients[seed]);
  };
  engine.submit(seeded(0), clients[0]);
  for (const auto& client : clients) client->ended.get_future().wait();
  for (std::size_t i = 0; i < clients.size(); ++i) EXPECT_EQ(tokens(*clients[i]), expected[i]) << i;
  for (std::size_t i = 1; i < clients.size(); ++i) {
    EXPECT_EQ(clients[i]->usage.cached_tokens, static_cast<std::int64_t>(request_.tokens.size()) - 1);
  }
}

TEST_F(EngineTest, ADeviceThatIsLostFailsAllThatAskAndIsToldOnce) {
  options_.method = std::make_shared<LosesTheDevice>(MethodOptions{});
  options_.parallel = 1;
  std::atomic<int> told = 0;
  std::promise<std::string> problem;
  options_.device_lost = [&](const std::string& what) {
    if (told++ == 0) problem.set_value(what);
  };
  request_.echo = false;
  request_.logprobs = -1;
  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  const auto first = std::make_shared<RefusedClient>(), waiting = std::make_shared<RefusedClient>();
  std::promise<void> submitted;
  first->leave = [&] { submitted.get_future().wait(); };  // until both are there
  engine.submit(request_, first);
  engine.submit(request_, waiting);
  submitted.set_value();
  for (const auto& client : {first, waiting}) {
    client->ended.get_future().wait();
    EXPECT_EQ(client->why.status, 503);
    EXPECT_EQ(client->why.message, "CUDA: the device is lost to this process");
  }
  EXPECT_EQ(problem.get_future().get(), "CUDA: the device is lost to this process");
  EXPECT_TRUE(engine.stopping());
  EXPECT_EQ(engine.submit(request_, std::make_shared<RefusedClient>()), nullptr);
  engine.close();
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace hayloft::runtime::serve
