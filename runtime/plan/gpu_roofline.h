#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/attention/method.h"
#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/weights.h"
#include "offload/store/layout.h"

// The time of a decode step on a GPU that need not be there, predicted: of each kernel the longest of what it takes to
// issue its instructions, to move its bytes in device memory and to bring its bytes over the link, all at full rate
// (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009, with a roof more). Instructions and bytes are
// those that scripts/kernel-costs has counted in what nvcc and ptxas make of the kernels; nothing is measured, and no
// latency, launch or wait is in it: a device can be slower, and faster only where caches save bytes.
namespace hayloft::runtime::plan {

struct GpuCard {
  int multiprocessors = 0;   // each issues four instructions of a warp per cycle
  double gigahertz = 0;
  double memory_rate = 0;  // GB/s of device memory
  double link_rate = 0;    // GB/s from host memory
};

// "34,2.5,448,27.2": multiprocessors, GHz, GB/s of device memory, GB/s of the link. Throws Error.
GpuCard parse_card(const std::string& text);

struct PredictedStage {
  std::string stage;  // as Backend::stage_times() names them, and "weights"
  double ms = 0;      // of one token, all layers together
  std::string bound;  // what takes longest of what most of its time goes into: "instructions", "memory", "link"
};

// Of `dense` or `sparq` behind `tokens` tokens of context. Empty for methods, ranks, groups and head dimensions whose
// kernels have not been counted: those of a Llama-3-8B, r = 16, four query heads per KV head, 128.
std::vector<PredictedStage> predict_stages(const ModelConfig& config, const WeightSizes& weights,
                                           const MethodOptions& method, offload::ColumnFormat columns,
                                           std::int64_t tokens, const GpuCard& card);

}  // namespace hayloft::runtime::plan
