#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "offload/clock.h"
#include "runtime/attention/step_observer.h"
#include "runtime/eval/coverage.h"
#include "runtime/eval/eval.h"

// Observes the steps that an evaluation decodes.
namespace hayloft::runtime::eval {

// Adds the time that a session waits for an observer to `seconds`, which must outlive it.
class Clocked : public StepObserver {
 public:
  Clocked(std::shared_ptr<StepObserver> observer, double& seconds)
      : observer_(std::move(observer)), seconds_(seconds) {}

  bool wants(int layer, std::int64_t position) override { return observer_->wants(layer, position); }

  void see(const Step& step, const Method& by) override {
    const Clock::time_point start = Clock::now();
    observer_->see(step, by);
    seconds_ += seconds_since(start);
  }

 private:
  std::shared_ptr<StepObserver> observer_;
  double& seconds_;
};

// Holds the first `steps` behind a context to exact attention, which `host` computes: a backend whose device memory is
// host memory. Each takes exact attention in every layer.
class Meter : public StepObserver {
 public:
  Meter(gpu::Backend& host, std::int64_t context_tokens, int steps) : host_(host), end_(context_tokens + steps) {}

  bool wants(int, std::int64_t position) override { return position < end_; }
  void see(const Step& step, const Method& by) override;
  void enter(EvalRow& row) const;  // the means, where anything was seen

 private:
  gpu::Backend& host_;
  std::int64_t end_;
  double recall_ = 0, mass_ = 0, error_ = 0;  // sums
  int count_ = 0;
  Coverage coverage_;  // of the steps that predict their errors
};

}  // namespace hayloft::runtime::eval
