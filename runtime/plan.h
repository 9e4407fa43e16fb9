#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/counters.h"
#include "runtime/method.h"
#include "runtime/profile.h"
#include "runtime/session.h"
#include "runtime/weights.h"

// What a run will take, before anything is allocated: memory by place, and the time of a decoded token by term
// (docs/plan.md). For the CPU backend. Bytes come from the same functions that lay out the cache and count its steps.
namespace hayloft::runtime {

struct PlanRequest {
  ModelConfig config;
  WeightSizes weights;
  SessionOptions session;
  std::vector<MethodOptions> methods;
  std::int64_t tokens = 0;            // of context
  std::uint64_t host_budget = 0;      // for the store, as the arena will have it
  std::uint64_t available_bytes = 0;  // of the machine's memory, for everything
};

struct PlanMemory {
  std::uint64_t rows = 0;     // of the store: K and V, value sums
  std::uint64_t columns = 0;  // of the store, with scales
  std::uint64_t tails = 0;
  std::uint64_t workspace = 0;
  std::uint64_t weights = 0;
  std::uint64_t saved = 0;  // on disk, when the context is saved: at most

  std::uint64_t store() const { return rows + columns; }
  std::uint64_t total() const { return store() + tails + workspace + weights; }  // in memory
};

// Milliseconds of one decoded token.
struct PlanTime {
  double search = 0;  // reading columns, and the selection, which is made while they are read
  double rows = 0;    // selected rows and short ranges of the store
  double dense = 0;   // all rows of the store
  double tail = 0;    // the newest tokens, and the windows of sliding-window layers
  double weights = 0;
  double fixed = 0;  // calling the layers' verbs

  double total() const { return search + rows + dense + tail + weights + fixed; }
};

struct PlannedMethod {
  MethodOptions attn;
  Counters counters;  // of one step, over all global layers
  std::optional<PlanTime> ms;
};

struct Plan {
  std::int64_t tokens = 0;
  PlanMemory memory;
  std::uint64_t host_budget = 0;
  std::string shortfall;  // what does not fit, and what would make it fit, with the numbers; empty when all fits
  std::vector<PlannedMethod> methods;
};

// Without a profile there are no times. Throws Error on methods whose options are out of range.
Plan make_plan(const PlanRequest& request, const MachineProfile* profile);

// The longest context whose store takes no more than `bytes`; at most what positions of 32 bits can name.
std::int64_t longest_context(const ModelConfig& config, const CacheOptions& options, std::uint64_t bytes);

std::string plan_table(const Plan& plan);               // Markdown
std::string plan_json(const std::vector<Plan>& plans);  // schema "hayloft.plan/1"

// A Llama-like model of this shape, every layer global. Sizes that are 0 take those of Llama 3: hidden = heads * d,
// intermediate = 3.5 hidden, vocab = 128256. Throws Error naming the option when a size is out of range.
struct ShapeOptions {
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t vocab = 0;
};
ModelConfig config_of_shape(const ShapeOptions& shape);

}  // namespace hayloft::runtime
