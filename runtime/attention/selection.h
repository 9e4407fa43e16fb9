#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/attention/host_tail.h"
#include "runtime/attention/method.h"

// What the methods that choose positions have in common: the newest w positions and the whole tail are attended anyway,
// the others are chosen in the store; and for those that search near the memory, the way from a query to an output.
namespace hayloft::runtime {

struct SelectionPlan {
  std::int64_t limit = 0;   // positions [0, limit) may be chosen, all behind them are attended
  std::int64_t tokens = 0;  // S
  int k = 0;                // chosen per list
  int lists = 0;            // Hkv or Hq

  gpu::Attended attended() const;  // but for the positions
  std::uint64_t rows_per_head(
      int kv_heads) const;  // read for each KV head: its lists' choices and what is behind limit
};

// What a method chooses from a cache of this length: k positions per list, as its options have it for the layer, its
// window's newest counted in. `per` is selects_per() of them, but for methods that select in one way only.
SelectionPlan plan_selection(const Method& method, const gpu::CacheView& cache, int query_heads, index::SelectPer per);

// SparQ's w where a user has not given one (section 4: a quarter of k).
std::int64_t sparq_window(const MethodOptions& options, std::int64_t tokens, int layer);

// The query of a step, [Hq][d], times `scale`. Waits for the device.
std::vector<float> query_on_host(const Step& step, const float* q, float scale);

inline float exact_scale(int head_dim) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
}

// [heads][columns], 0 to columns - 1 for each head: a search over every column.
std::vector<std::int32_t> every_column(int heads, int columns);

struct Selection {
  std::vector<std::int32_t> positions;  // [lists][k], ascending
  std::vector<float> alpha;             // [Hq], the softmax mass of all that is attended
};

// A search whose softmax goes on from the tail's: positions and alpha. `search` says where, with which weights, and
// takes limit and k from the plan.
Selection select_with_mass(const offload::LayerView& view, index::ColumnSearch search, const SelectionPlan& plan,
                           const TailScores& tail, const offload::Threads& threads);

// Attends to the plan, whose positions i32 [lists][k] are in device memory, and records it. alpha f32 [Hq], device:
// as gpu::Attended has it; may be null.
void attend_positions(const Step& step, const float* q, const SelectionPlan& plan, const std::int32_t* positions,
                      const float* alpha, float* out);

// The same for what was chosen on the host: alpha as SparQ's step 3 unless it is empty, and records it.
void attend_selection(const Step& step, const float* q, const SelectionPlan& plan, const Selection& selection,
                      bool mean_value, float* out);

}  // namespace hayloft::runtime
