#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu/backend.h"
#include "offload/host/arena.h"
#include "offload/store/layout.h"
#include "runtime/attention/counters.h"
#include "runtime/attention/method.h"

// Attention alone, at the shape of a model that need not be there: K and V are noise, and the layers' matrices are left
// out. What remains of a decode step is what this project is about, so it is what `hayloft bench` times.
namespace hayloft::runtime::plan {

struct AttentionBench {
  int layers = 32;  // all global
  int query_heads = 32;
  int kv_heads = 8;
  int head_dim = 128;
  std::int64_t tokens = 0;  // of context, the tail included
  int block_tokens = 4096;
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  std::vector<MethodOptions> methods;
  double seconds = 5;  // about how long to measure each method
  offload::RowFormat rows = offload::RowFormat::f16;
};

// The time of a part of a step, all layers together.
struct PartTime {
  std::string name;
  double ms = 0;
};

// Parts of `ms`, a median over other steps than those in which the stages were timed, which took `whole_seconds`: each
// has the share that it has of those, so that a busy moment of the machine makes no part longer than the whole. What
// runs at the same time counts as if it did not.
std::vector<PartTime> shares(const std::vector<gpu::StageTime>& stages, double whole_seconds, double ms);

struct AttentionBenchRow {
  MethodOptions attn;
  double ms = 0;                   // of a step: the median, every layer queued before anything is waited for
  double ms_low = 0, ms_high = 0;  // the quartiles
  int steps = 0;                   // measured
  std::vector<PartTime> stages;    // the backend's part of it: shares(); the rest is the host's
  Counters counters;               // of one step, all layers
};

struct AttentionBenchResult {
  int measured_layers = 0;       // as many as host memory holds; times and counters are scaled to all layers
  std::uint64_t host_bytes = 0;  // of the store that was measured
  double fill_seconds = 0;       // it took to make that, pinning included
  std::vector<AttentionBenchRow> rows;
};

struct AttentionBenchHooks {
  // Told what is being done: "layer 3 of 8 filled", "sparq".
  std::function<void(const std::string& what)> progress;
  // Given everything so far, once when the store is filled and then after each method.
  std::function<void(const AttentionBenchResult& so_far)> measured;
};

// query_heads is a multiple of kv_heads. Throws Error when not even one layer fits into the arena, or not all of them
// where a method has a k for each, and on options out of range.
AttentionBenchResult bench_attention(gpu::Backend& backend, offload::Arena& arena, const AttentionBench& bench,
                                     const AttentionBenchHooks& hooks = {});

}  // namespace hayloft::runtime::plan
