#pragma once

#include <cstdint>

#include "offload/half.h"

namespace hayloft::gpu {

struct Attended;
struct SparqSelect;

// Floats from one query head's scores to the next, where a device keeps those of so many positions: whole chunks.
inline std::int64_t scores_stride(std::int64_t tokens) {
  return (tokens + 255) / 256 * 256;
}

// One decode step that attends to `what` exactly and estimates the rest of [0, select.limit) by the scores that
// select_sparq() has kept of it (runtime/attention/rest_estimate.h says how; docs/methods.md, "The rest").
struct RestStep {
  const SparqSelect& select;  // by which positions were selected
  const Attended& what;       // with the positions selected, of one list for each KV head; without alpha
  // f32 [Hq][scores_stride(store.tokens)], SparqSelect::scores; what is attended is taken out of them.
  float* scores = nullptr;
  // The sample that lines are fitted over (runtime/attention/line_sample.h), in memory of the device: keys f16
  // [Hkv][d][index::line_row], positions [line_samples].
  const f16* line_keys = nullptr;
  const std::int32_t* line_positions = nullptr;
  int line_samples = 0;
  bool draws = false;  // values are drawn; else the mean value stands for the rest
  int drawn = 0;       // values of each list, as many as there are at most
  std::uint64_t key = 0;
  float* error = nullptr;  // out: f32 [Hq], the predicted error of the output
  float* share = nullptr;  // out: f32 [Hq], the share of the softmax that lies on what is attended exactly
};

}  // namespace hayloft::gpu
