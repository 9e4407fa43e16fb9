#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/exact_search.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/method.h"

// From the plan of a step to its output: positions are selected on the device or on the host, near the memory, and then
// attended to with whatever the plan takes in besides.
namespace hayloft::runtime {

// Positions of a plan, and what was learned while they were selected.
struct Selection {
  std::vector<std::int32_t> positions;  // [lists][k], ascending
  std::vector<float> alpha;             // [Hq], the softmax mass of all that is attended; may be empty
};

// The same in memory of the device, in the step's scratch.
struct DeviceSelection {
  std::int32_t* positions;
  float* alpha;
};

// The query of a step, [Hq][d], times `scale`. Waits for the device.
std::vector<float> query_on_host(const Step& step, const float* q, float scale);

// Logits over the tail, copied from the device: weights f32 [Hq][d], the temperature divided out.
TailScores score_tail(const Step& step, const std::vector<float>& weights);

// A search of the host that ranks by every column of `view`.
struct HostSearch {
  const offload::LayerView& view;
  int columns;
  const std::vector<float>& weights;  // [Hq][columns], the temperature divided out
  index::GroupRule rule;
  index::SelectPer per;
  index::KeySource keys = index::KeySource::columns;
};
// tail: goes on from its softmax, so that alpha comes out as well; null: positions alone.
Selection select_on_host(const Step& step, const SelectionPlan& plan, const HostSearch& search, const TailScores* tail);

// Step 1 of SparQ on the device; `args` takes limit and k from the plan.
DeviceSelection select_on_device(const Step& step, const SelectionPlan& plan, const float* q, gpu::SparqSelect args);

// Attends as planned and fills the trace, but for its alpha. positions i32 [lists][k] and alpha f32 [Hq], both in
// memory of the device, are as gpu::Attended has them; null where there are none.
void attend_positions(const Step& step, const SelectionPlan& plan, const float* q, const std::int32_t* positions,
                      const float* alpha, float* out);

// The same for what was selected on the host; alpha is used (SparQ's step 3) with `mean_value`, and traced in any case.
void attend_selection(const Step& step, const SelectionPlan& plan, const float* q, const Selection& selection,
                      bool mean_value, float* out);

// SparQ's w where a user has not given one (section 4: a quarter of k).
std::int64_t sparq_window(const MethodOptions& options, std::int64_t tokens, int layer);

}  // namespace hayloft::runtime
