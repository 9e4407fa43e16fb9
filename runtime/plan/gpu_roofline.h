#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/store/layout.h"
#include "runtime/attention/counters.h"
#include "runtime/attention/method.h"
#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/weights/weights.h"
#include "runtime/plan/gpu_cards.h"

// The time of a decode step on a GPU that need not be there, predicted: of each kernel the longest of what it takes to
// issue its instructions, to move its bytes in device memory and to bring its bytes over the link, all at full rate
// (the roofline of Williams, Waterman and Patterson, CACM 52(4), 2009, with a third roof). Instructions and bytes are
// what scripts/kernel-costs counts in the kernels as nvcc and ptxas make them. Nothing of this is measured, and no
// latency, wait or conflict is in it, and of launches an assumed time: a device is rather slower.
namespace hayloft::runtime::plan {

// Where a stage's figures come from.
enum class Basis : std::uint8_t {
  counted,  // in the kernels, at this very shape
  scaled,   // counted at another shape, and taken to grow with heads, components and bits
  bytes,    // its bytes over the card's rates, and nothing else
  assumed   // a figure that is neither counted nor measured
};
const char* name(Basis basis);  // "counted", "scaled", "bytes", "assumed"

struct PredictedStage {
  std::string stage;  // as Backend::stage_times() names it, or "states", "weights", "launches"
  double ms = 0;      // of one token, all layers together
  std::string bound;  // "instructions", "memory", "link", "launch" or "host memory": what most of the time goes into
  // The time that each of them takes by itself, of which ms has the longest of every kernel.
  double instructions_ms = 0;
  double memory_ms = 0;
  double link_ms = 0;
  Basis basis = Basis::counted;
};

// One token by one method, or a pass of exact attention that verifies several.
struct DecodeStep {
  const ModelConfig* config = nullptr;
  WeightSizes weights;
  MethodOptions method;
  Counters counters;  // of the step
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  offload::RowFormat rows = offload::RowFormat::f16;
  double columns_held = 0;  // share of the bytes of columns that the device keeps and reads there
  double rows_held = 0;     // and of the rows of lists
  // Says which share of the columns over the link the step before chose too, where a device fetches that while it
  // multiplies matrices and advances states, as far as it gets (gpu::Backend::fetch_ahead); 0: it does not.
  double columns_again = 0;
  // Positions that are selected by bounds of strips in place of logits, all lists of all layers together; 0: by logits.
  std::int64_t by_strips = 0;
  // A pass brings the store over the link once, and reads matrices once, for all of its tokens.
  int tokens = 1;
};

// Returns the stages in the order of a step, of any method and shape. What was counted was counted for a layer of a
// Llama-3-8B (8 KV heads of 4 query heads, 128 components): `sparq` at rank 16, `planes` at 16, 32 and 64 bits, rows,
// and packed and plain products; other heads, components, ranks and bits are scaled from there. A search that runs
// beside the host's memory (Place::near), and a rest by scores, are not in it.
std::vector<PredictedStage> predict_stages(const DecodeStep& step, const GpuCard& card);

}  // namespace hayloft::runtime::plan
