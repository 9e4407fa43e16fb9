#pragma once

#include <cstdint>
#include <vector>

#include "runtime/attention/host_tail.h"
#include "runtime/attention/step_observer.h"
#include "runtime/fidelity/ranking.h"

namespace hayloft::runtime {

// Says how well one decode step in one layer approximated exact attention over everything in the cache.
struct StepFidelity {
  int layer = 0;               // of the model
  std::int64_t position = 0;   // of the step's token
  std::int64_t k = 0;          // positions the method was to attend, and the k of the recall
  std::vector<double> recall;  // [Hkv] share of the true top k that was attended; lists per query head: their mean
  std::vector<double> mass;    // [Hq] share of the exact softmax that lies on what was attended
  std::vector<double> error;   // [Hq] |y - y_exact| / |y_exact|
};

// A step kept on the host, so that it can be looked at while the session decodes on: queries, output and tail are
// copied, the blocks of the store are shared. Movable.
class StepSample {
 public:
  StepSample(const Step& step, const Method& by);  // waits for the device

  // Against exact attention, computed by `host`, a backend whose device memory is host memory. Throws nothing but what
  // running out of memory throws.
  StepFidelity measure(gpu::Backend& host);

  StepQuery query() const { return {store_view_, tail_, q_.data(), query_heads_, sinks_}; }
  int layer() const { return layer_; }
  std::int64_t position() const { return tail_.first() + tail_.tokens() - 1; }
  const StepTrace& trace() const { return trace_; }
  std::uint64_t bytes() const;  // of K and V that exact attention reads

 private:
  std::vector<double> output_errors(gpu::Backend& host);

  int layer_;
  int global_layer_;
  int query_heads_;
  offload::Store store_;
  offload::LayerView store_view_;  // of store_
  HostTail tail_;
  std::vector<float> q_;      // [Hq][d]
  std::vector<float> out_;    // [Hq][d]
  std::vector<float> sinks_;  // [Hq], or empty
  StepTrace trace_;
  std::int64_t k_;
};

}  // namespace hayloft::runtime
