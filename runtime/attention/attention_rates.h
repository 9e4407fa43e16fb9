#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "offload/store/layout.h"
#include "runtime/attention/counters.h"
#include "runtime/attention/method_options.h"

// Says how fast a machine attends, and what a step's bytes take by that: what plans predict with and `auto` chooses by.
namespace hayloft::runtime {

// Says how fast attention goes, for heads of one dimension shared by a group of query heads. The arithmetic grows with
// the group, so reading alone does not say it.
struct AttentionRates {
  int head_dim = 0;
  int group = 0;
  double column_scan = 0;  // GB/s: SparQ's step 1 with a selection of 32 positions, rank 16, f16 columns
  double exact_scan = 0;   // GB/s: the top 32 of each query head over all columns
  double row_gather = 0;   // GB/s: attention to scattered rows
  double dense = 0;        // GB/s: attention to all rows in order
  double tail = 0;         // GB/s: attention to a tail of 4096 tokens
  double sparq_tail = 0;   // GB/s: the same with what SparQ needs of it besides, its scores and its mean value
  // GB/s: SparQ's step 1 over integer columns, scales counted in, and the exact top-k where those leave it the rows.
  double int8_scan = 0;
  double int4_scan = 0;
  double planes_scan = 0;  // 32 planes and the ranges of their components
  double row_scan = 0;
  double causal = 0;  // GFLOP/s: attention of a prompt's chunk, 4 d for each query and key it sees
  // GB/s: the search of an approximate index, which reads whole centroids and scattered keys.
  double ann_search = 0;
  // Microseconds for each position that a list selects: where the best are found, keys are scored a second time.
  double column_select_us = 0;  // by SparQ's step 1
  double exact_select_us = 0;   // by the exact search

  // Returns the rate of SparQ's step 1, and of the exact top-k over a store whose columns have that format.
  double sparq_scan(offload::ColumnFormat format) const;
  double topk_scan(offload::ColumnFormat format) const;
};

// Milliseconds of attention in one step.
struct AttentionTime {
  double search = 0;  // reading columns, and the selection, which is made while they are read
  double rows = 0;    // selected rows and short ranges of the store
  double dense = 0;   // all rows of the store
  double tail = 0;    // the newest tokens

  double total() const { return search + rows + dense + tail; }
};

// Returns the time that the bytes that `method` reads in a step (Method::count) take over a store of that layout.
// `alone`: the rates of a group of one query head, which a list per query head gathers rows at.
AttentionTime attention_time(const MethodOptions& method, const Counters& counters, const offload::BlockLayout& layout,
                             const AttentionRates& rates, const AttentionRates& alone);

// The factor by which an integer row takes longer than an f16 row on the CPU, attended to, as docs/rows.md measured it
// once.
inline constexpr double cpu_integer_rows = 3;
// The same, searched.
inline constexpr double cpu_integer_keys = 1.4;

// The rates that `auto` predicts by. Immutable; rates() may be called from any thread.
struct MachineRates {
  std::string source;  // in words: where the rates come from
  // For heads of that dimension and group, and of a layer's store of so many bytes.
  std::function<AttentionRates(int head_dim, int group, std::uint64_t layer_bytes)> rates;
  // The factor by which an integer row takes longer than an f16 row: the rates are of f16 rows. 0: in proportion to its
  // bytes.
  double integer_rows = 0;  // attended
  double integer_keys = 0;  // searched
  double margin = 0.05;     // the share of dense attention's time that another method has to save
};

// Returns the rates where no machine has been measured: those of the CPU backend (device "cpu"), or of a GPU behind a
// link of sixteen lanes of PCIe 4 (docs/auto.md says what they rest on).
std::shared_ptr<const MachineRates> built_in_rates(const std::string& device);

}  // namespace hayloft::runtime
