#include "runtime/fidelity/audit_target.h"

#include <gtest/gtest.h>

#include "offload/error.h"
#include "tests/runtime/fidelity/audit_fixture.h"

namespace hayloft::runtime {
namespace {

using hayloft::testing::TinyRun;

constexpr int head_dim = 8;

// A measurement of the step at position 999 whose two KV heads, of two query heads each, catch this much.
StepFidelity caught(std::int64_t k, double first, double second, int rank = 4) {
  StepFidelity sample;
  sample.layer = 5;
  sample.global_layer = 2;
  sample.position = 999;
  sample.k = k;
  sample.rank = rank;
  sample.recall = {1, 1};
  sample.mass = {first, first, second, second};
  sample.error = {0, 0, 0, 0};
  return sample;
}

AuditTarget target(std::string_view method, double mass = 0.95, int samples = 1) {
  AuditTargetOptions options;
  options.mass = mass;
  options.samples = samples;
  MethodOptions defaults;
  defaults.rank = 4;  // what caught() has
  return {parse_method(method, defaults), head_dim, options};
}

std::vector<std::string> update(AuditTarget& target, const StepFidelity& sample) {
  return target.update(std::span(&sample, 1));
}

TEST(AuditTarget, RaisesTheKOfALayerOfWhichOneHeadCatchesTooLittle) {
  AuditTarget target = runtime::target("sparq:r=4:k=100");
  const std::vector<std::string> lines = update(target, caught(100, 0.99, 0.9));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "audit: head 1 of layer 5 catches 90.0% of the attention mass, not 95%: k 100 -> 150");
  EXPECT_EQ(target.method()->options().k.at(2).of(1000), 150);
  EXPECT_EQ(target.method()->options().k.at(1).of(1000), 100);
  EXPECT_EQ(target.method()->options().k.at(3).of(1000), 100);
}

TEST(AuditTarget, LeavesAloneWhatCatchesEnough) {
  AuditTarget target = runtime::target("sparq:r=4:k=100");
  const SharedMethod before = target.method();
  EXPECT_TRUE(update(target, caught(100, 0.96, 0.97)).empty());
  EXPECT_EQ(target.method(), before);
}

TEST(AuditTarget, DecidesOnTheMeanOfSeveralSamples) {
  AuditTarget target = runtime::target("topk:k=100", 0.95, 3);
  EXPECT_TRUE(update(target, caught(100, 0.5, 1)).empty());
  EXPECT_TRUE(update(target, caught(100, 1, 1)).empty());
  EXPECT_EQ(update(target, caught(100, 1, 1)).size(), 1u);  // 0.83
  EXPECT_TRUE(update(target, caught(150, 0.94, 1)).empty());
  EXPECT_TRUE(update(target, caught(150, 0.97, 1)).empty());
  EXPECT_TRUE(update(target, caught(150, 0.97, 1)).empty());  // 0.96
}

TEST(AuditTarget, DoesNotCountStepsMadeBeforeTheRaise) {
  AuditTarget target = runtime::target("topk:k=10%");
  EXPECT_EQ(update(target, caught(100, 0.9, 0.9)).size(), 1u);
  EXPECT_TRUE(update(target, caught(100, 0.9, 0.9)).empty());
  EXPECT_EQ(update(target, caught(150, 0.92, 0.92)).size(), 1u);
}

TEST(AuditTarget, RaisesRWhereALargerKDoesNotHelpSparq) {
  AuditTarget target = runtime::target("sparq:r=4:k=100");
  EXPECT_EQ(update(target, caught(100, 0.5, 1)).size(), 1u);
  const std::vector<std::string> lines = update(target, caught(150, 0.51, 1));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("r 4 -> 6, as a larger k did not help"), std::string::npos) << lines[0];
  EXPECT_EQ(target.method()->options().rank, 6);
  EXPECT_EQ(target.method()->options().k.at(2).of(1000), 150);
  EXPECT_TRUE(update(target, caught(150, 0.51, 1, 4)).empty());  // of before
  EXPECT_NE(update(target, caught(150, 0.6, 1, 6))[0].find("k 150 -> 225"), std::string::npos);
}

TEST(AuditTarget, SaysOnceWhenThereIsNothingMoreToRaise) {
  AuditTarget target = runtime::target("topk:k=800");
  EXPECT_NE(update(target, caught(800, 0.5, 1))[0].find("k 800 -> 1000"), std::string::npos);
  EXPECT_NE(update(target, caught(1000, 0.5, 1))[0].find("nothing more to raise"), std::string::npos);
  EXPECT_TRUE(update(target, caught(1000, 0.5, 1)).empty());
}

TEST(AuditTarget, RefusesWhatItCannotDo) {
  for (const double mass : {0.0, 1.01, -1.0}) EXPECT_THROW(target("sparq:r=4", mass), Error) << mass;
  EXPECT_THROW(target("window:window=100"), Error);  // k has no effect on it
  EXPECT_THROW(target("h2o:k=100"), Error);          // what it has evicted does not come back
  EXPECT_NO_THROW(target("window:k=100"));
}

// Measures every step at once.
class MeasuresNow : public StepObserver {
 public:
  bool wants(int, std::int64_t) override { return true; }
  void see(const Step& step, const Method& by) override {
    measured.push_back(StepSample(step, by).measure(step.at.backend));
  }
  std::vector<StepFidelity> measured;
};

TEST(AuditTarget, IsReachedWhileDecoding) {
  for (const char* method : {"sparq:r=2:k=16", "topk:k=4", "window:k=20"}) {
    SCOPED_TRACE(method);
    TinyRun run("llama");
    AuditTargetOptions options;
    options.mass = 0.9;
    options.samples = 2;
    AuditTarget target(parse_method(method, {}), run.model.config().head_dim, options);
    const auto watcher = std::make_shared<MeasuresNow>();
    run.session.add_observer(watcher);
    int raised = 0;
    for (int i = 0; i < 60; ++i) {
      run.session.set_method(target.method()).step(run.tokens[static_cast<std::size_t>(run.session.tokens())]);
      raised += static_cast<int>(target.update(watcher->measured).size());
      if (i < 58) watcher->measured.clear();
    }
    EXPECT_GT(raised, 0);
    for (const StepFidelity& sample : watcher->measured) {
      for (std::size_t head = 0; head < sample.recall.size(); ++head) {
        const std::size_t g = sample.mass.size() / sample.recall.size();
        const auto first = sample.mass.begin() + static_cast<std::ptrdiff_t>(head * g);
        // Single steps scatter around the mean that is held to the target.
        EXPECT_GT(std::accumulate(first, first + static_cast<std::ptrdiff_t>(g), 0.0) / static_cast<double>(g), 0.85);
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime
