#include <atomic>

#include "tests/runtime/serve/engine_fixture.h"
#include "tests/support/golden_models.h"

// Tests who goes on from what was read or scored of a prompt, and who waits for whom.
namespace hayloft::runtime::serve {
namespace {

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

// Nobody gets what was read of a context that has been replaced since.
TEST_F(EngineTest, NobodyWaitsForWhatIsReadOfAContextThatHasBeenReplaced) {
  struct Reader : Client {
    void reading(std::int64_t done, std::int64_t total) override {
      order.push_back(done);
      Client::reading(done, total);
    }
    std::vector<std::int64_t>& order;
    explicit Reader(std::vector<std::int64_t>& all) : order(all) {}
  };
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  save_book(contexts, 100);
  ask_the_book();
  Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
  std::vector<std::int64_t> order;  // of the chunks of both
  const auto first = std::make_shared<Reader>(order), second = std::make_shared<Reader>(order);
  first->leave = [&] {
    engine.forget_context("book");
    engine.submit(request_, second);
  };
  ask(engine, request_, first);
  second->ended.get_future().wait();
  const auto again = std::ranges::find(order.begin() + 1, order.end(), order.front());
  EXPECT_LT(again - order.begin(), static_cast<std::ptrdiff_t>(order.size() / 2)) << "it begins before the first ends";
}

TEST_F(EngineTest, APromptThatBeginsWithAWholeOtherGoesOnFromAWholeChunk) {
  request_.echo = false;
  GenerationRequest shorter = request_;
  shorter.tokens.resize(100);
  shorter.max_tokens = 1;
  const auto before = std::make_shared<Client>(), after = std::make_shared<Client>(),
             alone = std::make_shared<Client>();
  {
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
    ask(engine, shorter, before);
    ask(engine, request_, after);
    EXPECT_EQ(after->usage.cached_tokens, options_.session.chunk_tokens);
  }
  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  ask(engine, request_, alone);
  EXPECT_EQ(logprobs(*after), logprobs(*alone));
}

// The next prompt has all of the conversation, and of the answer what its client has kept of it. A sliding window and
// what a method keeps cannot be taken back: there it goes on from the end of the prompt.
TEST_F(EngineTest, NothingOfAConversationIsReadAgain) {
  request_.echo = false;
  request_.logprobs = -1;
  request_.max_tokens = 20;
  request_.tokens.resize(200);
  request_.conversation = request_.tokens.size() - 3;
  const Model global(goldens / "llama", *backend_);
  struct Case {
    const Model& model;
    const char* method;
    std::size_t kept;  // of the answer
  };
  for (const Case& each : {Case{global, "dense", 7}, Case{model_, "dense", 0}, Case{global, "h2o:k=300", 0}}) {
    options_.method = make_method(parse_method(each.method, {}), each.model.config().head_dim);
    Engine engine({each.model, tokenizer_, path_}, arena_, contexts_, options_);
    const auto first = std::make_shared<Client>(), second = std::make_shared<Client>();
    ask(engine, request_, first);
    const std::vector<std::int32_t> answer = tokens(*first);
    GenerationRequest next = request_;
    next.tokens.insert(next.tokens.end(), answer.begin(), answer.begin() + 7);
    for (int i = 0; i < 30; ++i) next.tokens.push_back(answer[7] == 3 ? 4 : 3);
    next.conversation = next.tokens.size() - 3;
    ask(engine, next, second);
    const auto read = static_cast<std::int64_t>(each.kept > 0 ? 200 + each.kept : 199);
    EXPECT_EQ(second->usage.cached_tokens, read) << each.method;
    EXPECT_EQ(engine.figures().read_again.chunk, each.kept > 0 ? 0u : 8u) << each.method;

    GenerationRequest other = request_;  // what is no conversation goes on from whole chunks, to the bit
    other.conversation = 0;
    other.tokens.push_back(9);
    const auto third = std::make_shared<Client>();
    ask(engine, other, third);
    EXPECT_EQ(third->usage.cached_tokens, 3 * options_.session.chunk_tokens) << each.method;
  }
}

// Sessions share blocks, which count once: a conversation goes on in memory that has no room for another like it.
TEST_F(EngineTest, AConversationThatNearlyFillsTheMemoryIsNotReadAgain) {
  const Model global(goldens / "llama", *backend_);
  request_.echo = false;
  request_.logprobs = -1;
  request_.max_tokens = 20;
  while (request_.tokens.size() < 3000) request_.tokens.push_back(request_.tokens[request_.tokens.size() - 400]);
  request_.conversation = request_.tokens.size() - 3;
  options_.session.cache.block_tokens = 64;
  options_.session.cache.window = 16;
  options_.host_bytes = host_bytes(global.config(), options_.session.cache, 3200) * 3 / 2;
  Engine engine({global, tokenizer_, path_}, arena_, contexts_, options_);
  GenerationRequest next = request_;
  for (int turn = 0; turn < 3; ++turn) {
    const auto client = std::make_shared<Client>();
    ask(engine, next, client);
    const std::vector<std::int32_t> answer = tokens(*client);
    if (turn > 0) {
      EXPECT_GE(client->usage.cached_tokens, client->usage.prompt_tokens - 31) << turn;
    }
    next.tokens.insert(next.tokens.end(), answer.begin(), answer.end());
    for (int i = 0; i < 30; ++i) next.tokens.push_back(7 + i);
    next.conversation = next.tokens.size() - 3;
  }
  EXPECT_LE(engine.figures().kept_bytes, options_.host_bytes);

  // Another conversation takes its place, as there is room for one alone.
  GenerationRequest other = request_;
  other.tokens.front() = 99;
  const auto client = std::make_shared<Client>();
  ask(engine, other, client);
  EXPECT_EQ(client->usage.cached_tokens, 0);
  EXPECT_LE(engine.figures().kept_bytes, options_.host_bytes);
}

// Keeps what follows the last whole chunk of the prompt too, which is read once.
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

TEST_F(EngineTest, WhatWasKeptForAnswersThatNobodyWaitsForGoesWithThem) {
  request_.echo = false;
  options_.parallel = 1;
  Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options_);
  const auto first = std::make_shared<Client>(), copy = std::make_shared<Client>();
  std::shared_ptr<Job> waiting;
  first->leave = [&] { waiting = engine.submit(request_, copy); };
  first->at_token = [&] { waiting->cancel(); };
  ask(engine, request_, first);

  // A prompt that begins alike goes on from whole chunks, as if it had read all itself.
  GenerationRequest longer = request_;
  for (int i = 0; i < 100; ++i) longer.tokens.push_back(7 + i % 50);
  const auto next = std::make_shared<Client>();
  ask(engine, longer, next);
  EXPECT_EQ(next->usage.cached_tokens, static_cast<std::int64_t>(request_.tokens.size() / 64 * 64));
}

}  // namespace
}  // namespace hayloft::runtime::serve
