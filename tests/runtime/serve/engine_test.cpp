#include <atomic>
#include <fstream>
#include <sstream>

#include "tests/runtime/serve/engine_fixture.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::serve {
namespace {

TEST_F(EngineTest, DraftedAnswersOfSeveralClientsAreThoseOfSingleSteps) {
  request_.echo = false;
  request_.max_tokens = 40;
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(request_);
    requests.back().tokens.resize(static_cast<std::size_t>(300 + 50 * i));
    requests.back().logprobs = i == 3 ? 0 : -1;  // which no draft gives
    if (i == 2) requests.back().sampling.temperature = 0.8f;
  }
  std::vector<std::vector<std::int32_t>> answers[2];
  for (const bool drafted : {false, true}) {
    EngineOptions options = options_;
    if (drafted) {
      options.drafts = parse_draft("lookup,self:sparq:r=8:k=64");
      options.drafts->costs = DraftCosts{0.05, 0.05};
    }
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options);
    std::vector<std::shared_ptr<Client>> clients;
    for (const GenerationRequest& request : requests) {
      clients.push_back(std::make_shared<Client>());
      engine.submit(request, clients.back());
    }
    for (const auto& client : clients) {
      client->ended.get_future().wait();
      EXPECT_TRUE(client->usage.attention.exact());
      EXPECT_EQ(client->usage.completion_tokens, 40);
      answers[drafted ? 1 : 0].push_back(tokens(*client));
    }
    EXPECT_EQ(engine.figures().drafts.tokens, drafted ? 120 : 0);
    EXPECT_EQ(engine.figures().drafts.accepted > 0, drafted);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST_F(EngineTest, EachAnswerIsDraftedByAHeadThatKnowsItsOwnText) {
  const test::TemporaryFolder folder;
  const auto path = test::write_hybrid_model(folder.path() / "model", {.head = true});
  const Model model(path, *backend_, WeightForm::stored, {}, ExpertPlace::automatic, true);
  request_.echo = false;
  request_.logprobs = -1;
  request_.max_tokens = 40;
  std::vector<std::vector<std::int32_t>> answers[2];
  for (const bool drafted : {false, true}) {
    EngineOptions options = options_;
    if (drafted) {
      options.drafts = parse_draft("mtp");
      options.drafts->costs = DraftCosts{0.05, 0.05};
    }
    Engine engine({model, tokenizer_, path}, arena_, contexts_, options);
    std::vector<std::shared_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) {
      GenerationRequest request = request_;
      request.tokens.resize(static_cast<std::size_t>(100 + 30 * i));
      clients.push_back(std::make_shared<Client>());
      engine.submit(request, clients.back());
    }
    for (const auto& client : clients) {
      client->ended.get_future().wait();
      answers[drafted ? 1 : 0].push_back(tokens(*client));
    }
    EXPECT_EQ(engine.figures().drafts.drafted > 0, drafted);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

// Two answers are decoded together, and the longer one goes on alone, with drafts, to the same text.
TEST_F(EngineTest, ALoneAnswerIsDraftedToTheTextThatItHasAnyway) {
  request_.echo = false;
  request_.logprobs = -1;
  std::vector<std::vector<std::int32_t>> answers[2];
  for (const bool drafted : {false, true}) {
    EngineOptions options = options_;
    options.drafts_for_one = true;
    if (drafted) {
      options.drafts.emplace();
      options.drafts->costs = DraftCosts{0.05, 0.05};
    }
    Engine engine({model_, tokenizer_, path_}, arena_, contexts_, options);
    std::vector<std::shared_ptr<Client>> clients;
    for (const int tokens : {20, 90}) {
      GenerationRequest request = request_;
      request.max_tokens = tokens;
      clients.push_back(std::make_shared<Client>());
      engine.submit(request, clients.back());
    }
    for (const auto& client : clients) {
      client->ended.get_future().wait();
      answers[drafted ? 1 : 0].push_back(tokens(*client));
    }
    const DraftFigures figures = engine.figures().drafts;
    EXPECT_EQ(figures.tokens > 0, drafted);
    EXPECT_LE(figures.tokens, 90 - 9);
    EXPECT_EQ(answers[drafted ? 1 : 0][1].size(), 90U);
  }
  EXPECT_EQ(answers[0], answers[1]);
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

// Another program does that, and tells the server nothing.
TEST_F(EngineTest, AnAnswerIsOfTheFileThatIsThereWhenItBegins) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  save_book(contexts, 100);
  ask_the_book();
  Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
  const auto prompt_of_next = [&] {
    const auto client = std::make_shared<Client>();
    ask(engine, request_, client);
    return client->usage.prompt_tokens - static_cast<std::int64_t>(request_.tokens.size());
  };
  const auto book = [&] { return offload::Snapshot::open(contexts.path("book")).token_count(); };
  const std::int64_t first = book();
  EXPECT_EQ(prompt_of_next(), first);
  save_book(contexts, 50);
  EXPECT_LT(book(), first);
  EXPECT_EQ(prompt_of_next(), book());
  append_to({model_, tokenizer_, path_}, arena_, "and the quiet loft is full", contexts.path("book"),
            {options_.session});
  EXPECT_EQ(prompt_of_next(), book());
  EXPECT_EQ(prompt_of_next(), book());
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

// Lets the test do something when memory is taken, as for a context that is opened.
struct TakenMemory : offload::ChunkListener {
  void committed(std::byte*, std::uint64_t) override {
    if (then) std::exchange(then, {})();
  }
  void releasing(std::byte*, std::uint64_t) noexcept override {}
  std::function<void()> then;
};

TEST_F(EngineTest, AContextThatCannotBeAskedIsNoLackOfMemory) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  ask_the_book();
  request_.audit = true;
  request_.quotes = 3;
  options_.session.cache.copy_saved = true;
  const auto memory = std::make_shared<TakenMemory>();
  offload::Arena arena{topology_, {.budget_bytes = std::uint64_t{64} << 20, .listener = memory}};
  Engine engine({model_, tokenizer_, path_}, arena, contexts, options_);
  const auto why = [&] {
    const auto client = std::make_shared<RefusedClient>();
    ask(engine, request_, client);
    return client->why;
  };
  EXPECT_EQ(why().status, 404);
  folder.write("book.hay", "no context");
  EXPECT_EQ(why().status, 400);
  save_book(contexts, 600);
  std::filesystem::rename(contexts.path("book"), contexts.path("new"));
  save_book(contexts, 900);
  memory->then = [&] { std::filesystem::rename(contexts.path("new"), contexts.path("book")); };
  const Failure replaced = why();
  EXPECT_EQ(replaced.status, 503) << replaced.message;
  EXPECT_NE(replaced.message.find("was replaced"), std::string::npos) << replaced.message;
}

TEST_F(EngineTest, AContextThatIsDamagedSomewhereIsNoLackOfMemory) {
  const test::TemporaryFolder folder;
  const Contexts contexts(folder.path());
  ask_the_book();
  save_book(contexts, 600);
  std::ostringstream kept;
  kept << std::ifstream(contexts.path("book"), std::ios::binary).rdbuf();
  Engine engine({model_, tokenizer_, path_}, arena_, contexts, options_);
  int refused = 0;
  constexpr std::size_t places = 64;
  for (std::size_t place = 0; place < places; ++place) {
    std::string damaged = kept.str();
    damaged[damaged.size() * place / places] ^= 1;
    folder.write("book.hay", damaged);
    const auto client = std::make_shared<RefusedClient>();
    ask(engine, request_, client);
    if (client->why.message.empty()) continue;  // rows of blocks are verified when somebody asks for that
    ++refused;
    EXPECT_EQ(client->why.status, 400) << client->why.message;
  }
  EXPECT_GT(refused, 1) << "the header is not all that is looked at";
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
