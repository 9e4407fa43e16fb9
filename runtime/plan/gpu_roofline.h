#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/store/layout.h"
#include "runtime/attention/counters.h"
#include "runtime/attention/method.h"
#include "runtime/checkpoint/config.h"

// The time of a decode step on a GPU that need not be there, predicted: of each kernel the longest of what it takes to
// issue its instructions, to move its bytes in device memory and to bring its bytes over the link, all at full rate
// (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009, with a third roof). Instructions and bytes are
// what scripts/kernel-costs counts in the kernels as nvcc and ptxas make them. Nothing of this is measured, and no
// latency, launch, wait or conflict is in it: a device is rather slower.
namespace hayloft::runtime::plan {

struct GpuCard {
  int multiprocessors = 0;  // each issues four instructions of a warp per cycle; 0: only the rates are known
  double gigahertz = 0;
  double memory_rate = 0;  // GB/s of device memory
  double link_rate = 0;    // GB/s from host memory
};

// "34,2.5,448,27.2": multiprocessors, GHz, GB/s of device memory and of the link. Throws Error.
GpuCard parse_card(const std::string& text);

struct PredictedStage {
  std::string stage;  // as Backend::stage_times() names it, or "weights"
  double ms = 0;      // of one token, all layers together
  std::string bound;  // "instructions", "memory" or "link": what most of the time goes into
  // The time that each of them takes by itself, of which ms has the longest of every kernel.
  double instructions_ms = 0;
  double memory_ms = 0;
  double link_ms = 0;
};

// One token by one method.
struct DecodeStep {
  const ModelConfig* config = nullptr;
  std::uint64_t weight_bytes = 0;  // that a token is multiplied with
  MethodOptions method;
  Counters counters;  // of the step
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  std::int64_t stored = 0;  // tokens in the store
  offload::RowFormat rows = offload::RowFormat::f16;
};

// In the order of a step. Empty where the kernels have not been counted: for methods other than `dense`, `sparq` at
// rank 16 and `planes` at 16, 32 or 64 bits, for a rest by scores, and for layers other than a Llama-3-8B's (8 KV heads
// of 4 query heads, 128 components).
std::vector<PredictedStage> predict_stages(const DecodeStep& step, const GpuCard& card);

// Likewise of any method and shape, but by its bytes alone, over the link and in device memory; selection and whatever
// else takes instructions rather than bytes is not in it.
std::vector<PredictedStage> predict_by_bytes(const DecodeStep& step, const GpuCard& card);

}  // namespace hayloft::runtime::plan
