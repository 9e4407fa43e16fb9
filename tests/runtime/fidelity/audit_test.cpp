#include "runtime/fidelity/audit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <set>
#include <stdexcept>

#include "offload/error.h"
#include "tests/runtime/fidelity/audit_fixture.h"
#include "tests/support/parameter_name.h"

namespace hayloft::runtime {
namespace {

using hayloft::testing::TinyRun;

// Samples everything, however long it takes.
AuditOptions everything() {
  AuditOptions options;
  options.rate = 1;
  options.time_share = 0;
  options.pending = 1000;
  return options;
}

// Computes what StepFidelity says, by enumeration in double precision.
class AuditByHand : public StepObserver {
 public:
  bool wants(int, std::int64_t) override { return true; }
  void see(const Step& step, const Method& by) override {
    const int d = step.at.cache.head_dim;
    const int group = step.at.query_heads / step.at.cache.kv_heads;
    const std::int64_t k = by.options().k.at(step.at.cache.layer).of(step.at.cache.tokens());
    StepFidelity expected;
    expected.layer = step.at.layer;
    expected.position = step.at.cache.tokens() - 1;
    expected.k = k;
    std::vector<std::vector<double>> weights;
    for (int h = 0; h < step.at.query_heads; ++h) {
      weights.push_back(hayloft::testing::exact_weights(step.at.cache, step.at.query_heads, step.q, h));
      const int list = step.trace->lists == step.at.query_heads ? h : h / group;
      const std::set<std::int64_t> attended = attended_by(*step.trace, list);
      double mass = 1 - std::accumulate(weights.back().begin(), weights.back().end(), 0.0);  // the sink's
      for (const std::int64_t position : attended) mass += weights.back()[static_cast<std::size_t>(position)];
      expected.mass.push_back(mass);
      double difference = 0;
      double norm = 0;
      for (int i = 0; i < d; ++i) {
        double y = 0;
        for (std::int64_t t = 0; t < step.at.cache.tokens(); ++t) {
          const float v = to_float(hayloft::testing::row_of(step.at.cache, h / group, t)[d + i]);
          y += weights.back()[static_cast<std::size_t>(t)] * v;
        }
        difference += std::pow(step.out[h * d + i] - y, 2);
        norm += y * y;
      }
      expected.error.push_back(std::sqrt(difference / norm));
    }
    const bool per_query_head = step.trace->lists == step.at.query_heads;
    for (int head = 0; head < step.at.cache.kv_heads; ++head) {
      double recall = 0;
      std::vector<double> shared(weights.front().size());
      for (int h = head * group; h < (head + 1) * group; ++h) {
        if (per_query_head)
          recall += share(weights[static_cast<std::size_t>(h)], attended_by(*step.trace, h), k) / group;
        for (std::size_t t = 0; t < shared.size(); ++t) shared[t] += weights[static_cast<std::size_t>(h)][t];
      }
      if (!per_query_head) recall = share(shared, attended_by(*step.trace, head), k);
      expected.recall.push_back(recall);
    }
    steps.push_back(expected);
  }

  std::vector<StepFidelity> steps;

 private:
  static std::set<std::int64_t> attended_by(const StepTrace& trace, int list) {
    std::set<std::int64_t> positions;
    for (const auto& range : trace.ranges) {
      for (std::int64_t t = range.begin; t < range.end; ++t) positions.insert(t);
    }
    for (int i = 0; trace.lists > 0 && i < trace.k; ++i) {
      positions.insert(trace.positions[static_cast<std::size_t>(list * trace.k + i)]);
    }
    return positions;
  }
  static double share(const std::vector<double>& weights, const std::set<std::int64_t>& attended, std::int64_t k) {
    const std::vector<std::int64_t> order = hayloft::testing::by_weight(weights);
    return static_cast<double>(
               std::count_if(order.begin(), order.begin() + k, [&](std::int64_t t) { return attended.count(t) > 0; })) /
           static_cast<double>(k);
  }
};

struct Case {
  const char* model;  // llama: 3 query heads a KV head; llama-linear-sharded: 1; llama-llama3: 2; smollm3: 3, and
                      // sliding windows between its global layers; gpt_oss: 2, and sinks
  offload::ColumnFormat columns;
  const char* method;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << " " << c.method << " " << offload::name(c.columns);
}

class AuditFigures : public ::testing::TestWithParam<Case> {};

TEST_P(AuditFigures, AreThoseOfABruteForceComputation) {
  TinyRun run(GetParam().model, GetParam().columns, GetParam().method);
  const auto expected = std::make_shared<AuditByHand>();
  const auto auditor = std::make_shared<Auditor>(*run.backend, everything());
  run.session.add_observer(expected);
  run.session.add_observer(auditor);
  run.decode(run.session, GetParam().method, 20);  // the tail grows to a block, which is spilled, and starts again
  auditor->finish();
  const std::vector<StepFidelity> measured = auditor->take_measured();
  ASSERT_EQ(measured.size(), expected->steps.size());
  ASSERT_EQ(measured.size(), 20u * static_cast<std::size_t>(run.model.config().global_layers()));
  // Logits of these models stay below 16 and are sums of at most 24 products of f32: off by 24 * 16 * 2^-24 = 2.3e-5 at
  // most, in a softmax's numerator and denominator. What such weights do to an output, whose components are a few times
  // smaller than the values averaged in it, is a few times as much.
  constexpr double mass_tolerance = 5e-5;
  constexpr double error_tolerance = 4 * mass_tolerance;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    SCOPED_TRACE(fmt::format("sample {}", i));
    const StepFidelity& got = measured[i];
    const StepFidelity& want = expected->steps[i];
    EXPECT_EQ(got.layer, want.layer);
    EXPECT_EQ(got.position, want.position);
    EXPECT_EQ(got.k, want.k);
    ASSERT_EQ(got.recall.size(), want.recall.size());
    ASSERT_EQ(got.mass.size(), want.mass.size());
    ASSERT_EQ(got.error.size(), want.error.size());
    for (std::size_t h = 0; h < want.recall.size(); ++h) EXPECT_NEAR(got.recall[h], want.recall[h], 1e-12);
    for (std::size_t h = 0; h < want.mass.size(); ++h) {
      EXPECT_NEAR(got.mass[h], want.mass[h], mass_tolerance);
      EXPECT_NEAR(got.error[h], want.error[h], error_tolerance);
    }
  }
}

constexpr auto f16_columns = offload::ColumnFormat::f16;
INSTANTIATE_TEST_SUITE_P(
    Methods, AuditFigures,
    ::testing::Values(Case{"llama", f16_columns, "sparq:r=2:k=40"}, Case{"llama", f16_columns, "topk:k=20"},
                      Case{"llama", f16_columns, "window:k=30:sinks=4"}, Case{"llama", f16_columns, "dense"},
                      Case{"llama-linear-sharded", f16_columns, "sparq:r=4:k=30"},
                      Case{"llama-linear-sharded", f16_columns, "topk:k=10%"},
                      Case{"llama", f16_columns, "flexgen:k=20"}, Case{"llama", f16_columns, "oracle:k=20"},
                      Case{"llama-llama3", f16_columns, "h2o:k=40"}, Case{"llama", f16_columns, "pages:k=48:page=16"},
                      Case{"llama-llama3", f16_columns, "lowrank:r=4:k=30"},
                      Case{"llama-llama3", f16_columns, "sparq:r=4:k=1"},
                      // Exactness must not come from the integer mirror.
                      Case{"llama", offload::ColumnFormat::int8, "sparq:r=2:k=40"},
                      Case{"llama-llama3", offload::ColumnFormat::int4, "topk:k=40"},
                      Case{"smollm3", f16_columns, "sparq:r=2:k=24"}, Case{"gpt_oss", f16_columns, "sparq:r=4:k=24"},
                      Case{"gpt_oss", f16_columns, "topk:k=20"}, Case{"gpt_oss", f16_columns, "h2o:k=40"}),
    test::by_value);

TEST(Audit, FindsNothingAmissWithDenseAttention) {
  TinyRun run("llama");
  const auto auditor = std::make_shared<Auditor>(*run.backend, everything());
  run.session.add_observer(auditor);
  run.decode(run.session, "dense", 3);
  auditor->finish();
  for (const StepFidelity& step : auditor->take_measured()) {
    for (const double recall : step.recall) EXPECT_EQ(recall, 1);
    // Sums of 150 exponentials in f32, in two orders.
    for (const double mass : step.mass) EXPECT_NEAR(mass, 1, 150 * 0x1p-23);
    for (const double error : step.error) EXPECT_EQ(error, 0);  // the same arithmetic on the same backend
  }
}

TEST(Audit, ChangesNothingThatIsDecoded) {
  TinyRun run("smollm3");
  for (const char* method : {"sparq:r=2:k=24", "topk:k=8", "dense"}) {
    Session plain = run.session.fork();
    Session watched = run.session.fork();
    const auto auditor = std::make_shared<Auditor>(*run.backend, everything());
    watched.add_observer(auditor);
    EXPECT_EQ(run.decode(watched, method, 20), run.decode(plain, method, 20)) << method;
    auditor->finish();
    EXPECT_EQ(auditor->report().measured, 40);
    EXPECT_EQ(watched.counters().elements, plain.counters().elements);
  }
}

TEST(Audit, WatchesOneForkAfterAnother) {
  TinyRun run("llama");
  const auto auditor = std::make_shared<Auditor>(*run.backend, everything());
  for (int i = 0; i < 3; ++i) {
    Session fork = run.session.fork();
    fork.add_observer(auditor);
    run.decode(fork, "sparq:r=2:k=24", 2);
  }
  run.decode(run.session, "sparq:r=2:k=24", 2);  // nobody looks on
  auditor->finish();
  EXPECT_EQ(auditor->report().measured, 3 * 2 * 3);
}

TEST(Audit, SamplesOneStepInEachStretchWhereTheSeedSays) {
  for (const double rate : {1.0, 0.5, 0.3, 0.01}) {
    const SampleChoice choice(rate, 3);
    std::vector<std::int64_t> chosen;
    for (std::int64_t call = 0; call < 3000; ++call) {
      EXPECT_EQ(choice.chosen(call), SampleChoice(rate, 3).chosen(call));
      if (choice.chosen(call)) chosen.push_back(call);
    }
    EXPECT_EQ(chosen.size(), static_cast<std::size_t>(std::lround(3000 * rate))) << rate;
    for (std::size_t i = 1; i < chosen.size(); ++i) {
      EXPECT_LT(static_cast<double>(chosen[i] - chosen[i - 1]), 2 / rate + 1);
    }
  }
  int same = 0;
  for (std::int64_t call = 0; call < 3000; ++call) {
    same += SampleChoice(0.01, 3).chosen(call) && SampleChoice(0.01, 4).chosen(call);
  }
  EXPECT_LT(same, 5);  // of 30, each with one chance in 100
}

// Lets the auditor see steps; after the first one, decoding waits until it is being measured.
class HoldsUpTheFirst : public StepObserver {
 public:
  HoldsUpTheFirst(Auditor& auditor, std::future<void> measuring)
      : auditor_(auditor), measuring_(std::move(measuring)) {}
  bool wants(int layer, std::int64_t position) override { return auditor_.wants(layer, position); }
  void see(const Step& step, const Method& by) override {
    auditor_.see(step, by);
    if (measuring_.valid()) measuring_.get();
  }

 private:
  Auditor& auditor_;
  std::future<void> measuring_;
};

TEST(Audit, DropsAndCountsWhatComesFasterThanItCanBeMeasured) {
  TinyRun run("llama");
  AuditOptions options = everything();
  options.pending = 2;
  std::promise<void> measuring;
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  bool first = true;
  Auditor auditor(*run.backend, options, [&](StepSample& sample, gpu::Backend& host) {
    if (std::exchange(first, false)) {
      measuring.set_value();
      opened.wait();
    }
    return sample.measure(host);
  });
  run.session.add_observer(std::make_shared<HoldsUpTheFirst>(auditor, measuring.get_future()));
  run.decode(run.session, "sparq:r=2:k=24", 2);  // 6 layers: one is being measured, two wait
  EXPECT_EQ(auditor.report().measured, 0);
  EXPECT_EQ(auditor.report().dropped, 3);
  gate.set_value();
  auditor.finish();
  EXPECT_EQ(auditor.report().chosen, 6);
  EXPECT_EQ(auditor.report().measured, 3);
  EXPECT_EQ(auditor.report().dropped, 3);
}

TEST(Audit, MeasuresOneSampleWhereTimeAllowsForNone) {
  TinyRun run("llama");
  AuditOptions options;
  options.rate = 1;
  options.time_share = 1e-12;
  options.pending = 4;
  const auto auditor = std::make_shared<Auditor>(*run.backend, options);
  run.session.add_observer(auditor);
  run.decode(run.session, "sparq:r=2:k=24", 2);
  EXPECT_EQ(auditor->report().measured, 0);
  auditor->finish();
  EXPECT_EQ(auditor->report().measured, 1);
  EXPECT_EQ(auditor->report().dropped, 5);
}

TEST(Audit, SaysAtTheEndWhatWentWrongAndLetsDecodingGoOn) {
  TinyRun run("llama");
  const auto auditor = std::make_shared<Auditor>(
      *run.backend, everything(), [](StepSample&, gpu::Backend&) -> StepFidelity { throw Error("out of everything"); });
  run.session.add_observer(auditor);
  EXPECT_FALSE(run.decode(run.session, "dense", 3).empty());
  EXPECT_THROW(auditor->finish(), Error);
}

TEST(Audit, RefusesARateThatIsNoShare) {
  for (const double rate : {0.0, -0.1, 1.5, std::nan("")}) {
    AuditOptions options;
    options.rate = rate;
    EXPECT_THROW(check_audit(options), Error) << rate;
  }
  for (const double share : {-1.0, std::nan("")}) {
    AuditOptions options;
    options.time_share = share;
    EXPECT_THROW(check_audit(options), Error) << share;
  }
  for (const int pending : {0, -1}) {
    AuditOptions options;
    options.pending = pending;
    EXPECT_THROW(check_audit(options), Error) << pending;
  }
}

}  // namespace
}  // namespace hayloft::runtime
