#include <algorithm>
#include <random>

#include "gpu/cpu/cpu_backend.h"
#include "offload/error.h"
#include "tests/runtime/decode/session_fixture.h"
#include "tests/runtime/decode/verify_walk.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/temporary_folder.h"

// Several tokens verified in one pass against as many single steps by `dense`, to the bit.
namespace hayloft::runtime {
namespace {

class VerifyTest : public SessionTest {
 protected:
  void expect_as_single_steps(const Model& of, const SessionOptions& with, std::uint32_t seed, int wanted = 160) {
    runtime::expect_as_single_steps(of, arena, with, seed, wanted);
  }
};

TEST_F(VerifyTest, APassIsItsSingleStepsToTheBitInEveryArchitecture) {
  for (const auto& entry : std::filesystem::directory_iterator(goldens)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    if (entry.path().filename() == "seed_oss") continue;  // which a program adds
    const Model of(entry.path(), *backend);
    SCOPED_TRACE(entry.path().filename().string());
    ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(of, options, 11));
  }
}

TEST_F(VerifyTest, APassIsItsSingleStepsToTheBitWithRecurrentLayers) {
  test::TemporaryFolder folder;
  const Model of(test::write_hybrid_model(folder.path() / "model", {.layers = 8}), *backend);
  for (const std::uint32_t seed : {1u, 2u, 3u}) ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(of, options, seed));
}

TEST_F(VerifyTest, APassIsItsSingleStepsToTheBitWithRowsOfIntegersAndEveryForm) {
  for (const offload::RowFormat rows : {offload::RowFormat::int8, offload::RowFormat::int4}) {
    SessionOptions with = options;
    with.cache.rows = rows;
    for (const std::uint32_t seed : {4u, 5u}) ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(model, with, seed));
  }
  for (const WeightForm form : {WeightForm::stored, WeightForm::f16, WeightForm::q8, WeightForm::q4}) {
    const Model of(goldens / "llama", *backend, form);
    ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(of, options, 6));
  }
}

TEST_F(VerifyTest, WhatIsSavedBetweenPassesIsThatOfSingleSteps) {
  test::TemporaryFolder folder;
  const Model hybrid(test::write_hybrid_model(folder.path() / "model", {.layers = 4}), *backend);
  const Model windows(goldens / "gemma3", *backend), other_heads(goldens / "gemma4", *backend);
  std::uint32_t seed = 20;
  for (const Model* of : {static_cast<const Model*>(&model), &windows, &other_heads, &hybrid}) {
    for (const offload::RowFormat rows :
         {offload::RowFormat::f16, offload::RowFormat::int8, offload::RowFormat::int4}) {
      SessionOptions with = options;
      with.cache.rows = rows;
      ASSERT_NO_FATAL_FAILURE(runtime::expect_as_single_steps(*of, arena, with, seed++, 160, 140, folder.path()));
    }
  }
}

TEST_F(VerifyTest, APassThatFailsLeavesNothing) {
  const auto prompt = random_tokens(75, model.config().vocab_size, 3);
  Session session(model, arena, options), alone(model, arena, options);
  session.append(prompt);
  alone.append(prompt);
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5};
  struct Stop {};
  EXPECT_THROW(session.verify(tokens, [](const float*, int) -> int { throw Stop(); }), Stop);
  const std::vector<std::int32_t> unknown = {1, model.config().vocab_size};
  EXPECT_THROW(session.verify(unknown, [](const float*, int T) { return T; }), Error);
  EXPECT_EQ(session.steps(), 0);
  expect_same_cache(session.cache(), alone.cache());
  EXPECT_EQ(session.step(9), alone.step(9));
}

TEST_F(VerifyTest, ThePassReadsTheContextOnce) {
  Session together(model, arena, options), alone(model, arena, options);
  const auto prompt = random_tokens(200, model.config().vocab_size, 3);
  together.append(prompt);
  alone.append(prompt);
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4};
  ASSERT_EQ(together.verify(tokens, [](const float*, int T) { return T; }), 4);
  alone.step(1);
  EXPECT_EQ(together.counters().at(Place::link, Kind::dense), alone.counters().at(Place::link, Kind::dense));
}

// Wants the steps whose position is a multiple of `every`, and notes them with how often it was asked or told.
class EveryFew : public StepObserver {
 public:
  explicit EveryFew(std::int64_t every) : every_(every) {}
  bool wants(int layer, std::int64_t position) override {
    if (layer == 0) ++steps;
    return position % every_ == 0;
  }
  void see(const Step& step, const Method&) override { seen.emplace_back(step.at.layer, step.at.tokens() - 1); }
  std::int64_t unwanted_from(std::int64_t position) const override { return (every_ - position % every_) % every_; }
  void passed_over(std::int64_t tokens) override { steps += tokens; }

  std::vector<std::pair<int, std::int64_t>> seen;
  std::int64_t steps = 0;

 private:
  std::int64_t every_;
};

TEST_F(VerifyTest, ObserversSeeTheTokensThatTheyWantAndPassesTakeTheOthers) {
  Session together(model, arena, options), alone(model, arena, options);
  const auto prompt = random_tokens(45, model.config().vocab_size, 3);
  const auto tokens = random_tokens(60, model.config().vocab_size, 4);
  const auto few = std::make_shared<EveryFew>(7), all = std::make_shared<EveryFew>(7);
  for (Session* session : {&together, &alone}) session->append(prompt);
  together.add_observer(few);
  alone.add_observer(all);
  int passes = 0;
  for (std::size_t done = 0; done < tokens.size(); ++passes) {
    const auto rest = std::span(tokens).subspan(done);
    const std::int64_t ahead = together.exact_ahead();
    EXPECT_EQ(ahead, few->unwanted_from(together.tokens()));
    if (ahead == 0) {
      together.step(rest[0]);
      ++done;
    } else {
      done += static_cast<std::size_t>(together.verify(rest, [](const float*, int T) { return T; }));
    }
  }
  for (const std::int32_t token : tokens) alone.step(token);
  EXPECT_LT(passes, 30);
  EXPECT_EQ(few->seen, all->seen);
  EXPECT_EQ(few->steps, all->steps);
  EXPECT_EQ(together.step(1), alone.step(1));
}

TEST_F(VerifyTest, NothingIsAheadWhereTheMethodSelectsOrSomebodyWatchesEverything) {
  Session dense(model, arena, options);
  dense.append(random_tokens(45, model.config().vocab_size, 3));
  EXPECT_GT(dense.exact_ahead(), 1000);
  Session sparse(model, arena, options);
  sparse.set_method(make_method(method("sparq:r=4:k=8"), model.config().head_dim));
  sparse.append(random_tokens(45, model.config().vocab_size, 3));
  EXPECT_EQ(sparse.exact_ahead(), 0);
}

}  // namespace
}  // namespace hayloft::runtime
