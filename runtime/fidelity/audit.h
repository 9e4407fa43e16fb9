#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "gpu/backend.h"
#include "runtime/attention/step_observer.h"
#include "runtime/fidelity/audit_report.h"
#include "runtime/fidelity/audit_sample.h"

namespace hayloft::runtime {

// Says how many steps are sampled, and what measuring them may cost.
struct AuditOptions {
  double rate = 0.01;        // share of steps x layers that become samples, above 0 and up to 1
  double time_share = 0.02;  // of the time spent decoding that measuring may take at most; 0: whatever `rate` needs
  std::uint64_t seed = 1;
  int pending =
      4;  // samples that wait to be measured, at most: each holds a copy of one layer's tail; 1 with time_share
};
void check_audit(const AuditOptions& options);  // throws Error naming what is out of range

// Chooses the calls of a run, numbered from 0, that are samples: one of each 1/rate calls in a row, at a place that the
// seed decides, so that long runs and short ones are covered evenly and every layer has its turn.
class SampleChoice {
 public:
  SampleChoice(double rate, std::uint64_t seed) : rate_(rate), seed_(seed) {}
  bool chosen(std::int64_t call) const;

 private:
  double rate_;
  std::uint64_t seed_;
};

// The recall meter: observes the steps of sessions and measures samples of them against exact attention, on a thread of
// its own; with a time_share below 1 it runs with the lowest priority, so that decoding comes first. Nothing that it
// does changes what is decoded, and decoding never waits for a measurement: where samples come faster than they can be
// measured they are dropped and counted. Which calls become samples depends on rate and seed alone; which of them are
// dropped, on time.
//
// Observes one session after another; wants(), see() and finish() are for the thread that decodes.
class Auditor : public StepObserver {
 public:
  using Measure = std::function<StepFidelity(StepSample& sample, gpu::Backend& host)>;

  // `backend` is the one that the sessions decode with, and outlives the auditor. `measure` is for tests.
  explicit Auditor(
      const gpu::Backend& backend, const AuditOptions& options = {},
      Measure measure = [](StepSample& sample, gpu::Backend& host) { return sample.measure(host); });
  ~Auditor() override;
  Auditor(const Auditor&) = delete;
  Auditor& operator=(const Auditor&) = delete;

  bool wants(int layer, std::int64_t position) override;
  void see(const Step& step, const Method& by) override;

  // Ends the audit: what still waits is measured, now with all threads, unless that would take more than time_share;
  // then one sample is measured if none has been, and the rest dropped. Throws what measuring has thrown.
  void finish();

  AuditReport report() const;
  std::vector<StepFidelity> take_measured();  // since the last call, the oldest first; bounded, the newest are kept

 private:
  void work();
  bool affordable() const;
  void measured(StepFidelity fidelity, double seconds);
  double decoding_clock() const;  // seconds

  const offload::Threads& threads_;
  const bool on_processors_;  // decoding runs on the processors that measuring takes
  const AuditOptions options_;
  const Measure measure_;
  const SampleChoice choice_;

  // For the decoding thread.
  std::int64_t calls_ = 0;
  std::int64_t last_position_ = -1;
  int last_layer_ = -1;
  double last_call_ = 0;  // decoding_clock()

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // there may be something to measure, or to end
  std::deque<std::unique_ptr<StepSample>> waiting_;
  bool ending_ = false;
  AuditReport report_;
  std::deque<StepFidelity> fresh_;
  std::optional<double> seconds_per_byte_;  // of measuring, as last seen
  std::exception_ptr failure_;
  std::thread worker_;  // the last to be made, the first to end
};

}  // namespace hayloft::runtime
