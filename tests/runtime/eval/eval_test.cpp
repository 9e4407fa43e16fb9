#include "tests/runtime/eval/eval_fixture.h"

#include <cmath>
#include <set>

#include "runtime/eval/json.h"
#include "runtime/eval/metrics.h"
#include "runtime/eval/reach.h"
#include "tests/runtime/eval/plain_softmax.h"
#include "tests/support/refusal.h"

// Runs of an evaluation: what is entered in its rows, against the same computed directly.
namespace hayloft::runtime::eval {
namespace {

using hayloft::testing::plain_divergence;
using hayloft::testing::plain_softmax;
using test::refuses;

// A prompt is read in two pieces here and at once there: logits differ by some roundings of f32, 1e-6 of their size,
// and so do the figures made of them, relative to the logits' few units.
constexpr double rounding = 1e-4;

TEST_F(EvalTest, PerplexityAndAgreementAreThoseOfADirectComputation) {
  RandomTask task(300, 20, 0);
  run(task);
  ASSERT_EQ(rows.size(), 6u);
  for (int number = 0; number < 2; ++number) {
    const EvalSample sample = task.sample(number);
    const Session context = read(sample);
    std::vector<std::vector<std::vector<float>>> logits;  // [method][step]
    for (const MethodOptions& method : options.methods) {
      Session session = context.fork();
      session.set_method(make_method(method, model.config().head_dim));
      logits.emplace_back();
      std::int32_t token = sample.prompt.back();
      for (const std::int32_t next : sample.forced) {
        logits.back().push_back(session.step(token));
        token = next;
      }
    }
    for (std::size_t m = 0; m < 3; ++m) {
      const EvalRow& row = rows[static_cast<std::size_t>(number) * 3 + m];
      double losses = 0, divergences = 0, same = 0;
      for (std::size_t step = 0; step < 20; ++step) {
        losses -= std::log(plain_softmax(logits[m][step])[static_cast<std::size_t>(sample.forced[step])]);
        divergences += plain_divergence(logits[0][step], logits[m][step]);
        same += argmax(logits[m][step]) == argmax(logits[0][step]);
      }
      EXPECT_EQ(row.sample, number);
      EXPECT_EQ(row.steps, 20);
      EXPECT_NEAR(std::log(row.score), losses / 20, rounding);
      EXPECT_NEAR(*row.kl, divergences / 20, rounding);
      EXPECT_NEAR(*row.top1, same / 20, 0.051) << "one step may lie on the edge";
      EXPECT_EQ(row.prediction, "");
    }
    EXPECT_GT(*rows[static_cast<std::size_t>(number) * 3 + 2].kl, 100 * rounding) << "a window loses something";
  }
}

TEST_F(EvalTest, EachWayOfReadingIsHeldAgainstTheFirst) {
  options.methods = {parse_method("dense", {}), parse_method("window:k=16", {})};
  PrefillOptions window;
  window.kind = PrefillOptions::Kind::window;
  window.window = 4;
  window.sinks = 0;
  options.prefills = {{}, window};
  options.samples = 1;
  RandomTask task(320, 20, 0);
  run(task);
  ASSERT_EQ(rows.size(), 4u);
  std::vector<std::string> read;
  for (const EvalRow& row : rows) read.push_back(row.attn.name + ", " + row.prefill);
  EXPECT_EQ(read, (std::vector<std::string>{"dense, exact", "window, exact", "dense, window w=4 s=0",
                                            "window, window w=4 s=0"}));
  EXPECT_EQ(*rows[0].kl, 0);

  // The same by hand: the last 256 tokens of a prompt are read exactly, the last of all is decoded.
  const EvalSample sample = task.sample(0);
  Session exact = read_by(sample, {}), windowed = read_by(sample, window);
  double divergences = 0, losses = 0;
  std::int32_t token = sample.prompt.back();
  for (const std::int32_t next : sample.forced) {
    const std::vector<float> of_exact = exact.step(token), of_windowed = windowed.step(token);
    divergences += plain_divergence(of_exact, of_windowed);
    losses -= std::log(plain_softmax(of_windowed)[static_cast<std::size_t>(next)]);
    token = next;
  }
  EXPECT_NEAR(*rows[2].kl, divergences / 20, rounding);
  EXPECT_NEAR(std::log(rows[2].score), losses / 20, rounding);
  EXPECT_GT(*rows[2].kl, 100 * rounding) << "a window loses something";
  EXPECT_NE(
      eval_row_json(rows[2], "").find("approximate: every position attended to; the prompt was read by window w=4"),
      std::string::npos);

  // Rows that are there already are not made again, and are referred to all the same.
  const EvalRow before = rows[2];
  rows.clear();
  hooks.done = [](const EvalTask&, int, const std::string& prefill, const MethodOptions& attn) {
    return prefill == "exact" || attn.name != "dense";
  };
  run(task);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(*rows[0].kl, *before.kl);
  EXPECT_EQ(rows[0].score, before.score);
}

TEST_F(EvalTest, APromptThatWasReadSparselyIsSaidToBeExactWhereNoKeyWasLeftOut) {
  options.methods = {parse_method("dense", {})};
  PrefillOptions sparse;
  sparse.kind = PrefillOptions::Kind::sparse;
  sparse.sparse.density = 0.05;
  PrefillOptions always = sparse;  // however short the context
  always.sparse.dense_keys = 0;
  always.sparse.density = 0.06;
  options.prefills = {sparse, always};
  options.samples = 1;
  RandomTask task(1000, 4, 0);
  run(task);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_TRUE(rows[0].read_whole);
  EXPECT_NE(eval_row_json(rows[0], "").find(R"("attention":"exact")"), std::string::npos) << eval_row_json(rows[0], "");
  EXPECT_FALSE(rows[1].read_whole);
  EXPECT_NE(eval_row_json(rows[1], "").find("the prompt was read by sparse density=6%"), std::string::npos)
      << eval_row_json(rows[1], "");
}

TEST_F(EvalTest, AMethodThatAttendsToEverythingAgreesWithDense) {
  options.methods = {parse_method("sparq:r=16:k=100%", {}), parse_method("dense", {})};
  options.methods[0].rank = model.config().head_dim;
  RandomTask task(200, 16, 0);
  run(task);
  EXPECT_NEAR(*rows[0].kl, 0, 1e-6);
  EXPECT_EQ(*rows[1].kl, 0);
  EXPECT_EQ(*rows[1].top1, 1);
  EXPECT_NEAR(rows[0].score, rows[1].score, rounding * rows[1].score);
}

TEST_F(EvalTest, AnswersAreGreedyAndAsLongAsTheTaskAllows) {
  RandomTask task(100, 0, 9);
  run(task);
  const EvalSample sample = task.sample(0);
  Session session = read(sample);
  std::vector<std::int32_t> answer;
  for (std::int32_t token = sample.prompt.back(); answer.size() < 9; token = answer.back()) {
    answer.push_back(argmax(session.step(token)));
  }
  EXPECT_EQ(rows[0].prediction, tokenizer.decode(answer, false, true));
  EXPECT_EQ(rows[0].steps, 9);
  EXPECT_EQ(rows[0].score, 0.5);
  EXPECT_EQ(rows[0].expected, std::vector<std::string>{"x"});
  EXPECT_FALSE(rows[0].kl.has_value()) << "nobody asked for it";
}

TEST_F(EvalTest, DenseAnswersThatAreDraftedAreTheSame) {
  RandomTask task(300, 0, 40);
  run(task);
  const std::vector<EvalRow> steps = std::exchange(rows, {});
  for (const char* drafts : {"lookup", "lookup,self:topk:k=64"}) {
    options.drafts = parse_draft(drafts);
    options.drafts->costs = DraftCosts{};  // as if drafts cost nothing
    run(task);
    std::int64_t drafted = 0;
    ASSERT_EQ(rows.size(), steps.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].prediction, steps[i].prediction);
      EXPECT_EQ(rows[i].steps, steps[i].steps);
      ASSERT_EQ(rows[i].drafts.has_value(), rows[i].attn.name == "dense");
      if (!rows[i].drafts) continue;
      EXPECT_EQ(rows[i].drafts->tokens, rows[i].steps);
      drafted += rows[i].drafts->drafted;
      EXPECT_LE(rows[i].drafts->passes, rows[i].steps);
      const EvalRow read = parse_eval_row(eval_row_json(rows[i], "0"), "0", "");
      EXPECT_EQ(read.drafts->passes, rows[i].drafts->passes);
      EXPECT_EQ(read.drafts->accepted, rows[i].drafts->accepted);
    }
    EXPECT_TRUE(drafted > 0 || !options.drafts->self) << drafts;
    rows.clear();
  }
}

TEST_F(EvalTest, WhereAskedForMethodsAreLedAlongDenseAnswers) {
  RandomTask task(100, 0, 9);
  run(task);
  const std::vector<EvalRow> alone = std::move(rows);
  rows.clear();
  options.agreement = true;
  run(task);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].prediction, alone[i].prediction) << "the answers stay as they were";
    EXPECT_EQ(rows[i].steps, alone[i].steps);
    ASSERT_TRUE(rows[i].kl && rows[i].top1);
    EXPECT_EQ(*rows[i].kl == 0, rows[i].attn.name == "dense");
  }
}

TEST_F(EvalTest, CostsAreCountedPerDecodedToken) {
  RandomTask task(100, 0, 4);
  run(task);
  const ModelConfig& config = model.config();
  double dense = 0;
  for (std::uint64_t tokens = 100; tokens < 104; ++tokens) {
    dense += static_cast<double>(dense_elements(tokens, static_cast<std::uint64_t>(config.head_dim)));
  }
  EXPECT_DOUBLE_EQ(rows[0].elements_per_token, dense / 4 * config.kv_heads * config.global_layers());
  EXPECT_GT(rows[0].link_bytes_per_token, rows[1].link_bytes_per_token);
  EXPECT_EQ(rows[0].prompt_tokens, 100);
  EXPECT_EQ(rows[0].ctx_size, 104);
}

TEST_F(EvalTest, TheShareAttendedIsThatOfTheRowsRead) {
  options.methods.push_back(parse_method("topk:k=12", {}));  // selects per query head
  options.samples = 1;
  RandomTask task(300, 0, 4);
  run(task);
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_DOUBLE_EQ(rows[0].attended_share, 1) << "dense";
  EXPECT_NEAR(rows[2].attended_share, 16.0 / 302, 0.001) << "window";
  for (const std::size_t selecting : {1u, 3u}) {
    // k, less the local window, of the store, and a tail of 8 to 8 + 15 tokens and the newest.
    EXPECT_GT(rows[selecting].attended_share, (12 + 8 - 8) / 304.0);
    EXPECT_LT(rows[selecting].attended_share, (12 + 8 + 16) / 301.0);
  }
}

TEST_F(EvalTest, BlocksAreChosenByTheLengthOfTheContext) {
  EXPECT_EQ(block_tokens_for(1 << 20), 4096);
  EXPECT_EQ(block_tokens_for(64 << 10), 4096);
  EXPECT_EQ(block_tokens_for((64 << 10) - 1), 2048);
  EXPECT_EQ(block_tokens_for(4096), 256);
  EXPECT_EQ(block_tokens_for(3000), 128);
  EXPECT_EQ(block_tokens_for(1), 64);
  RandomTask task(300, 0, 4);
  options.samples = 1;
  run(task);
  EXPECT_EQ(rows[0].block_tokens, 16) << "as asked for";
  options.session.cache.block_tokens = 0;
  run(task);
  EXPECT_EQ(rows[3].block_tokens, 64);
}

TEST_F(EvalTest, SamplesOfOneMethodMayComeBeforeTheNextMethods) {
  options.by_method = true;
  RandomTask task(60, 0, 2);
  run(task);
  ASSERT_EQ(rows.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(rows[i].attn.name, options.methods[i / 2].name);
    EXPECT_EQ(rows[i].sample, static_cast<int>(i % 2));
  }
}

TEST_F(EvalTest, SparseMethodsAreHeldToExactAttentionUnlessNobodyWants) {
  RandomTask task(200, 0, 4);
  run(task);
  EXPECT_FALSE(rows[0].recall.has_value()) << "dense misses nothing";
  for (const std::size_t sparse : {1u, 2u}) {
    ASSERT_TRUE(rows[sparse].recall && rows[sparse].mass && rows[sparse].output_error);
    EXPECT_LT(*rows[sparse].mass, 1);
    EXPECT_GT(*rows[sparse].output_error, 0);
  }
  rows.clear();
  options.fidelity_steps = 0;
  run(task);
  EXPECT_FALSE(rows[1].recall.has_value());
}

TEST_F(EvalTest, EveryMethodThereIsCanBeMeasured) {
  MethodOptions defaults;
  defaults.rank = 4;
  defaults.k = Budgets({24, 0});
  options.samples = 1;
  for (const auto columns : {offload::ColumnFormat::f16, offload::ColumnFormat::planes}) {
    options.session.cache.columns = columns;
    options.methods.clear();
    for (const std::string& name : method_names()) {
      const MethodOptions method = parse_method(name, defaults);
      if (needs_planes(method) == (columns == offload::ColumnFormat::planes)) options.methods.push_back(method);
    }
    RandomTask task(300, 8, 0);
    rows.clear();
    run(task);
    ASSERT_EQ(rows.size(), options.methods.size());
    for (const EvalRow& row : rows) {
      EXPECT_TRUE(std::isfinite(row.score) && std::isfinite(*row.kl)) << row.attn.name;
      if (!row.mass) continue;
      EXPECT_GT(*row.mass, 0) << row.attn.name;
      EXPECT_LE(*row.mass, 1 + rounding) << row.attn.name;
    }
  }
}

TEST_F(EvalTest, RowsThatAreThereAreNotMadeAgain) {
  int started = 0;
  hooks.sample_started = [&](const EvalTask&, int, std::int64_t) { ++started; };
  hooks.done = [](const EvalTask&, int sample, const std::string&, const MethodOptions& attn) {
    return sample == 0 || attn.name == "dense";
  };
  RandomTask task(100, 8, 0);
  run(task);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(started, 1) << "of the first sample all rows are there";
  EXPECT_EQ(rows[0].attn.name, "sparq");
  EXPECT_GT(*rows[0].kl, 0) << "dense attention is referred to all the same";
}

class Counting : public StepObserver {
 public:
  bool wants(int layer, std::int64_t position) override {
    steps += layer == 0;
    last = position;
    return true;
  }
  void see(const Step&, const Method& by) override { names.insert(by.options().name); }
  int steps = 0;
  std::int64_t last = 0;
  std::set<std::string> names;
};

TEST_F(EvalTest, AnObserverSeesOneAnswerToEachSample) {
  const auto observer = std::make_shared<Counting>();
  options.observer = observer;
  RandomTask task(100, 0, 4);
  run(task);
  EXPECT_EQ(observer->steps, 2 * 4);
  EXPECT_EQ(observer->last, 102) << "positions count from 0, and the fourth answer is not decoded";
  EXPECT_EQ(observer->names, std::set<std::string>{"dense"});
}

TEST_F(EvalTest, ATaskWithFewSamplesEndsWithThem) {
  options.samples = 100;
  RandomTask task(60, 2, 0);
  run(task);
  EXPECT_EQ(rows.size(), 9u);
}

TEST_F(EvalTest, OptionsOutOfRangeAreRefused) {
  RandomTask task(100, 0, 4);
  options.samples = 0;
  EXPECT_TRUE(refuses([&] { run(task); }, {"--samples 0"}));
  options.samples = 1;
  options.methods.clear();
  EXPECT_TRUE(refuses([&] { run(task); }, {"--attn"}));
}

}  // namespace
}  // namespace hayloft::runtime::eval
