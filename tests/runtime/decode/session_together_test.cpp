#include <algorithm>

#include "gpu/cpu/cpu_backend.h"
#include "offload/error.h"
#include "tests/runtime/decode/session_fixture.h"

// Several sessions in turns and in one step.
namespace hayloft::runtime {
namespace {

TEST_F(SessionTest, InOneWorkspaceSessionsThatTakeTurnsAnswerAsEachInItsOwn) {
  const auto tokens = random_tokens(150, model.config().vocab_size, 7);
  const auto workspace = std::make_shared<Workspace>();
  Session long_one(model, arena, options), short_one(model, arena, options);
  Session long_alone(model, arena, options), short_alone(model, arena, options);
  long_one.share_workspace(workspace);
  short_one.share_workspace(workspace);
  for (Session* session : {&long_one, &long_alone}) session->append(tokens);
  for (Session* session : {&short_one, &short_alone}) session->append(std::span(tokens).first(5));
  const std::uint64_t bytes = workspace->memory.bytes();
  EXPECT_GT(bytes, 0u);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(long_one.step(i), long_alone.step(i)) << i;
    ASSERT_EQ(short_one.step(i), short_alone.step(i)) << i;
  }
  EXPECT_EQ(workspace->memory.bytes(), bytes);
  EXPECT_EQ(workspace.use_count(), 3);
  const Session fork = long_one.fork();
  EXPECT_EQ(workspace.use_count(), 3) << "a fork may go to another thread";
}

TEST_F(SessionTest, StepsTogetherAreThoseOfEachAloneToTheBit) {
  const auto tokens = random_tokens(150, model.config().vocab_size, 7);
  Session book(model, arena, options);
  book.append(tokens);
  std::vector<Session> together, alone;
  for (const char* text : {"dense", "sparq:r=4:k=40", "topk:k=20", "window:k=30", "h2o:k=24", "auto:r=4:k=20"}) {
    const SharedMethod made = make_method(method(text), model.config().head_dim);
    for (auto* sessions : {&together, &alone}) {
      Session session(model, arena, options);
      session.set_method(made);
      session.append(std::span(tokens).first(100 + sessions->size() * 7));
      sessions->push_back(std::move(session));
    }
  }
  const SharedMethod window = make_method(method("window:k=60"), model.config().head_dim);
  for (auto* sessions : {&together, &alone}) {
    for (int i = 0; i < 3; ++i) sessions->push_back(book.fork());
    for (int i = 0; i < 2; ++i) sessions->push_back(book.fork()), sessions->back().set_method(window);
  }
  Sampler greedy({.temperature = 0}), greedy_alone({.temperature = 0});
  for (int i = 0; i < 40; ++i) {  // blocks are spilled on the way
    std::vector<Session::Step> steps;
    for (std::size_t s = 0; s < together.size(); ++s) {
      Session::Step step;
      step.session = &together[s];
      step.token = static_cast<std::int32_t>(s) + i;
      if (s % 2 == 1) step.sampler = &greedy;
      steps.push_back(step);
    }
    Session::step_together(steps);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      ASSERT_FALSE(steps[s].failure) << s;
      const auto token = static_cast<std::int32_t>(s) + i;
      if (s % 2 == 1) {
        ASSERT_EQ(steps[s].next, alone[s].next(token, greedy_alone)) << s << ", step " << i;
      } else {
        ASSERT_EQ(steps[s].logits, alone[s].step(token)) << s << ", step " << i;
      }
      ASSERT_EQ(together[s].tokens(), alone[s].tokens());
      ASSERT_EQ(together[s].counters().bytes, alone[s].counters().bytes) << s;
      ASSERT_EQ(together[s].attended_share(), alone[s].attended_share());
    }
  }
}

// Counts how many steps attend at once, call after call.
class CountingBackend : public gpu::CpuBackend {
 public:
  using CpuBackend::CpuBackend;
  void attend_together(std::span<const gpu::AttendStep> steps, int query_heads, gpu::Stream stream) override {
    if (!steps.empty()) calls.push_back(steps.size());
    CpuBackend::attend_together(steps, query_heads, stream);
  }
  std::vector<std::size_t> calls;
};

// Wants every other step, and notes each layer that it is asked about.
class EveryOther : public StepObserver {
 public:
  bool wants(int layer, std::int64_t position) override {
    asked.push_back(layer);
    return position % 2 == 0;
  }
  void see(const Step& step, const Method&) override { seen.push_back(step.at.layer); }
  std::vector<int> asked, seen;
};

TEST_F(SessionTest, ForksSayWhichRowsOfTheirTailsAreTheSame) {
  const auto tokens = random_tokens(153, model.config().vocab_size, 7);
  Session book(model, arena, options);
  book.append(tokens);
  Session a = book.fork(), b = book.fork();
  a.append(std::span(tokens).first(3));
  const Session of_a = a.fork(), at_two = a.fork_at(155);
  b.step(1);
  // Returns the end of what two sessions say is the same, and checks that the rows before it, and no others, are.
  const auto common = [&](const Session& one, const Session& other) {
    std::int64_t end = 0;
    for (const gpu::TailOrigin& x : one.cache().view(0).origins) {
      for (const gpu::TailOrigin& y : other.cache().view(0).origins) {
        if (x.cache == y.cache) end = std::max(end, std::min(x.end, y.end));
      }
    }
    const auto row = [&](const Session& of, std::int64_t position) {
      const gpu::CacheView view = of.cache().view(0);
      const f16* const at = view.tail.rows + (view.tail.first + position - view.tail.position) * 2 * view.head_dim;
      return std::vector<std::uint16_t>(reinterpret_cast<const std::uint16_t*>(at),
                                        reinterpret_cast<const std::uint16_t*>(at + 2 * view.head_dim));
    };
    const std::int64_t most = std::min(one.tokens(), other.tokens());
    EXPECT_EQ(one.cache().view(0).tail.position, other.cache().view(0).tail.position);
    for (std::int64_t t = one.cache().view(0).tail.position; t < most; ++t) {
      EXPECT_EQ(row(one, t) == row(other, t), t < end) << t;
    }
    return end;
  };
  EXPECT_EQ(common(book, a), 153);
  EXPECT_EQ(common(a, b), 153);
  EXPECT_EQ(common(a, of_a), 156);
  EXPECT_EQ(common(of_a, at_two), 155);
  EXPECT_EQ(common(at_two, b), 153);
}

TEST_F(SessionTest, StepsThatReadRangesAttendInOneCallPerLayerButForThoseThatAnObserverWants) {
  CountingBackend counting(threads);
  const Model counted(goldens / "llama", counting);
  const auto layers = static_cast<std::size_t>(counted.config().layers);
  Session book(counted, arena, options);
  book.append(random_tokens(101, counted.config().vocab_size, 7));
  std::vector<Session> sessions;
  for (const char* text : {"dense", "dense", "window:k=30", "sparq:r=4:k=40", "dense"}) {
    sessions.push_back(book.fork());
    sessions.back().set_method(make_method(method(text), counted.config().head_dim));
  }
  const auto observer = std::make_shared<EveryOther>();
  sessions[0].add_observer(observer);
  for (const std::size_t at_once : {std::size_t{4}, std::size_t{3}}) {
    counting.calls.clear();
    std::vector<Session::Step> steps(sessions.size());
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i].session = &sessions[i];
    Session::step_together(steps);
    EXPECT_EQ(std::ranges::count(counting.calls, at_once), static_cast<std::ptrdiff_t>(layers));
  }
  EXPECT_EQ(observer->asked.size(), 2 * layers);
  EXPECT_EQ(observer->seen.size(), layers);
}

TEST_F(SessionTest, AStepThatFailsLeavesItsSessionAsItWasAndTheOthersAlone) {
  const auto tokens = random_tokens(60, model.config().vocab_size, 8);
  Session book(model, arena, options);
  book.append(tokens);
  Session first = book.fork(), bad = book.fork(), last = book.fork(), alone = book.fork();
  std::vector<Session::Step> steps(3);
  Session* const sessions[] = {&first, &bad, &last};
  for (std::size_t i = 0; i < 3; ++i) steps[i].session = sessions[i];
  steps[1].token = model.config().vocab_size;  // no such token
  Session::step_together(steps);
  EXPECT_THROW(std::rethrow_exception(steps[1].failure), Error);
  EXPECT_EQ(bad.tokens(), 60);
  const std::vector<float> expected = alone.step(0);
  EXPECT_EQ(steps[0].logits, expected);
  EXPECT_EQ(steps[2].logits, expected);
  EXPECT_EQ(bad.step(0), expected) << "goes on as if nothing had been";
}

}  // namespace
}  // namespace hayloft::runtime
