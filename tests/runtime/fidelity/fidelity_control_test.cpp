#include "runtime/fidelity/fidelity_control.h"

#include <gtest/gtest.h>

#include "offload/error.h"
#include "runtime/fidelity/audit_sample.h"
#include "tests/runtime/fidelity/audit_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

using hayloft::testing::TinyRun;

// Rates at which every level is worth it: attending to all rows takes long.
std::shared_ptr<const MachineRates> slow_dense() {
  MachineRates machine;
  machine.source = "a test";
  machine.rates = [](int head_dim, int group, std::uint64_t) {
    AttentionRates rates = built_in_rates("cpu")->rates(head_dim, group, 0);
    rates.dense = 1e-3;
    rates.exact_scan = 1e-2;
    return rates;
  };
  return std::make_shared<const MachineRates>(machine);
}

MethodOptions options_of(std::string_view text) {
  MethodOptions options = parse_method(text, {});
  options.rates = slow_dense();
  return options;
}

TEST(LevelChoice, IsExactUntilThereAreEnoughSamples) {
  LevelChoice choice(5);
  for (int i = 0; i + 1 < LevelChoice::enough; ++i) {
    choice.add(1);
    EXPECT_FALSE(choice.decided());
    EXPECT_EQ(choice.level(), 5);
  }
  choice.add(0);
  EXPECT_TRUE(choice.decided());
  EXPECT_EQ(choice.level(), 1);
}

TEST(LevelChoice, RisesAtOnceAndFallsWhenWhatAskedForItIsLongAgo) {
  LevelChoice choice(5);
  for (int i = 0; i < LevelChoice::kept; ++i) choice.add(1);
  EXPECT_EQ(choice.level(), 1);
  choice.add(3);
  EXPECT_EQ(choice.level(), 3);
  for (int i = 0; i + 1 < LevelChoice::kept; ++i) {
    choice.add(0);
    ASSERT_EQ(choice.level(), 3) << i;
  }
  choice.add(0);
  EXPECT_EQ(choice.level(), 0);
}

TEST(LevelChoice, ASampleThatNeedsExactAttentionDecidesAlone) {
  LevelChoice choice(5);
  choice.add(9);
  EXPECT_TRUE(choice.decided());
  EXPECT_EQ(choice.level(), 5);
}

TEST(LevelChoice, DoesNotFlapWhereSamplesDo) {
  LevelChoice choice(5);
  for (int i = 0; i < LevelChoice::enough; ++i) choice.add(2);
  int changes = 0;
  for (int i = 0, last = choice.level(); i < 100; ++i) {
    choice.add(i % 3 == 0 ? 4 : 1);
    changes += choice.level() != last ? 1 : 0;
    last = choice.level();
  }
  EXPECT_EQ(changes, 1);
}

// Measures every step at once, beside whatever steers.
class MeasuresNow : public StepObserver {
 public:
  bool wants(int, std::int64_t) override { return true; }
  void see(const Step& step, const Method& by) override {
    const StepFidelity sample = StepSample(step, by).measure(step.at.backend);
    const std::size_t group = sample.mass.size() / sample.recall.size();
    double least = 1;
    for (std::size_t head = 0; head < sample.recall.size(); ++head) {
      const auto first = sample.mass.begin() + static_cast<std::ptrdiff_t>(head * group);
      least = std::min(
          least, std::accumulate(first, first + static_cast<std::ptrdiff_t>(group), 0.0) / static_cast<double>(group));
    }
    mass.add(least);
    selected += step.trace->lists > 0 ? 1 : 0;
  }
  RunningStats mass;
  int selected = 0;
};

struct Steered {
  std::vector<float> logits;
  RunningStats mass;
  int selected = 0;
  FidelityReport report;
  std::map<std::string, std::int64_t> used;
  std::string note;
};
Steered decode(std::string_view method, double least, int steps = 150) {
  TinyRun run("llama");
  const auto control = std::make_shared<FidelityControl>(options_of(method), run.model.config().head_dim, least);
  const auto watcher = std::make_shared<MeasuresNow>();
  run.session.attach_method(*control->method());
  run.session.set_method(control->method()).add_observer(control);
  run.session.add_observer(watcher);
  Steered steered;
  for (int i = 0; i < steps; ++i) {
    const auto logits = run.session.step(run.tokens[static_cast<std::size_t>(run.session.tokens())]);
    steered.logits.insert(steered.logits.end(), logits.begin(), logits.end());
    if (control->update()) run.session.set_method(control->method());
    steered.note += control->take_note();
  }
  steered.mass = watcher->mass;
  steered.selected = watcher->selected;
  steered.report = control->report();
  steered.used = run.session.methods_used();
  return steered;
}

TEST(FidelityControl, KeepsWhatWasAskedWhileDecoding) {
  for (const char* method :
       {"auto:r=2:k=8", "sparq:r=2:k=8", "topk:k=4", "window:k=12", "pages:k=16:page=16", "lowrank:r=4:k=8"}) {
    for (const double least : {0.7, 0.9}) {
      SCOPED_TRACE(fmt::format("{} at {}", method, least));
      const Steered steered = decode(method, least);
      EXPECT_GE(steered.mass.mean(), least);
      EXPECT_GT(steered.report.samples, 0);
      EXPECT_EQ(steered.report.asked, least);
      if (steered.report.measured.count > 0) {
        EXPECT_GE(steered.report.measured.mean(), least);
      }
      std::int64_t attended = 0;
      for (const auto& [label, steps] : steered.used) attended += steps;
      EXPECT_EQ(attended, steered.mass.count);
    }
  }
}

TEST(FidelityControl, SelectsWhereThatCatchesEnough) {
  const Steered steered = decode("auto:r=2:k=8", 0.5);
  EXPECT_GT(steered.selected, 0);
  EXPECT_GT(steered.used.size(), 1u) << "dense while nothing was known";
  EXPECT_GT(steered.report.measured.count, 0);
  EXPECT_EQ(fidelity_line(steered.report).find("fidelity: 50% asked; "), 0u);
}

TEST(FidelityControl, TakesDenseAttentionWhereNothingElseWillDoAndSaysSoOnce) {
  const Steered steered = decode("auto:r=2:k=4", 1);
  EXPECT_EQ(steered.selected, 0);
  EXPECT_NEAR(steered.mass.mean(), 1, 1e-6);  // sums of f32 roundings
  EXPECT_EQ(steered.report.exact_layers, steered.report.layers);
  EXPECT_EQ(steered.used.size(), 1u);
  EXPECT_EQ(steered.used.count("dense"), 1u);
  EXPECT_NE(steered.note.find("take dense attention: nothing faster catches 100%"), std::string::npos);
  EXPECT_EQ(steered.note.find("fidelity", 1), std::string::npos) << steered.note;
}

TEST(FidelityControl, DecodesTheSameTwice) {
  const Steered first = decode("auto:r=2:k=8", 0.6);
  const Steered second = decode("auto:r=2:k=8", 0.6);
  EXPECT_EQ(first.logits, second.logits);
  EXPECT_EQ(first.used, second.used);
}

TEST(FidelityControl, HasNothingToMeasureWhereAllIsAttendedTo) {
  const Steered steered = decode("dense", 0.9, 20);
  EXPECT_EQ(steered.report.samples, 0);
  EXPECT_EQ(steered.note, "");
  EXPECT_NE(fidelity_line(steered.report).find("attended to everything"), std::string::npos);
}

TEST(FidelityControl, SaysWhenLessWasCaughtThanAsked) {
  FidelityReport report;
  report.asked = 0.99;
  report.measured.add(0.9);
  report.by_layer[3].add(0.9);
  EXPECT_EQ(fidelity_line(report),
            "fidelity: 99% asked; 90.00% of the attention mass caught on average by 1 sampled steps of single layers, "
            "least in layer 3: 90.00%; that is below what was asked");
}

TEST(FidelityControl, RefusesWhatItCannotDo) {
  for (const double least : {0.0, 1.01, -1.0}) {
    EXPECT_TRUE(test::refuses([&] { FidelityControl(options_of("auto"), 8, least); }, {"--fidelity", "share"}))
        << least;
  }
  EXPECT_TRUE(test::refuses([] { FidelityControl(options_of("window:window=100"), 8, 0.9); }, {"--attn-window 100"}));
  EXPECT_TRUE(test::refuses([] { FidelityControl(options_of("h2o:k=100"), 8, 0.9); }, {"--attn h2o"}));
}

}  // namespace
}  // namespace hayloft::runtime
