#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/attention/counters.h"
#include "runtime/attention/method.h"
#include "runtime/checkpoint/weights/expert_placement.h"
#include "runtime/decode/session.h"
#include "runtime/machine/profile.h"
#include "runtime/plan/device_cache.h"
#include "runtime/plan/gpu_roofline.h"
#include "runtime/plan/plan_network.h"

// Predicts what a run will take, before anything is allocated: memory by place, and the time of a decoded token by term
// (docs/plan.md). Bytes come from the same functions that lay out the cache and count its steps.
namespace hayloft::runtime::plan {

struct PlanRequest {
  ModelConfig config;
  WeightSizes weights;                                 // of all of them together
  ExpertPlace experts = ExpertPlace::automatic;        // where mixtures of experts lie, beside a device
  ExpertRates expert_rates = {};                       // by which `automatic` predicts
  std::optional<ExpertPlacement> placed_experts = {};  // where they do, of a model that is there
  ExpertsHeld experts_held = {};                       // by what a device keeps of them
  SessionOptions session;
  std::vector<MethodOptions> methods;
  std::int64_t tokens = 0;            // of context
  std::uint64_t host_budget = 0;      // for the store, as the arena will have it; 0: usual_host_budget()
  std::uint64_t available_bytes = 0;  // of the machine's memory, for everything
  std::uint64_t device_budget = 0;    // of a device with memory of its own, --gpu-memory; 0: the CPU computes
  CacheBudget device_cache;           // of it, for columns and rows that are kept there
  std::int64_t mapped_tokens = 0;     // of the store that lie in a saved context, mapped: whole blocks
  int checkpoints = 0;                // that a context keeps when it is saved; see IngestOptions
  bool saves = false;                 // whether the run saves its context, as ingest does
  int sessions = 1;                   // that are forked for questions at once
  int threads = 1;
  std::uint64_t tokenizer_file_bytes = 0;  // see tokenizer_bytes; 0 without one
  std::optional<GpuCard> card;             // whose stages are predicted from counted instructions and bytes
  std::optional<Network> network = {};     // between ranks, where session.cache.shard is one of several
  std::optional<double> accepted = {};     // share of drafted tokens, 0 to 1, with which exact decoding is planned
  std::optional<WeightSizes> head = {};    // of the model's head that predicts further tokens: head_sizes()
};

// Returns where experts will be, and the sizes as weights will lie then.
ExpertPlacement placed_experts(const PlanRequest& request);
WeightSizes placed_weights(const PlanRequest& request);

// Returns what a session has for its store when nobody says: nine tenths of what is free once the weights are there.
std::uint64_t usual_host_budget(const PlanRequest& request);

struct PlanMemory {
  std::uint64_t rows = 0;     // of the store: K and V, value sums
  std::uint64_t columns = 0;  // of the store, with scales
  std::uint64_t indices = 0;  // that the methods keep besides, all together
  std::uint64_t tails = 0;    // of the context, when it has been read
  // Sessions that are forked for questions take this; one takes no less than what reading the context needs more.
  std::uint64_t question = 0;
  std::uint64_t states = 0;  // of recurrent layers: the context's, and the questions'
  std::uint64_t workspace = 0;
  std::uint64_t weights = 0;
  // Beside a device with memory of its own, which then are not in `weights`: the embedding, and experts that do not lie
  // there.
  std::uint64_t host_weights = 0;
  std::uint64_t program = 0;  // libraries, the tokenizer's tables, what matrix products work in
  std::uint64_t text = 0;     // and token ids
  std::uint64_t saving = 0;   // of a run that saves its context, in place of store, tails and questions
  bool saves = false;         // whether this one does
  std::uint64_t scratch = 0;  // of a device: what operations take as they run, cuBLAS, and CUDA itself
  bool apart = false;         // whether tails, workspace and weights lie on a device, outside the machine's memory
  std::uint64_t mapped = 0;   // of the store, in a file: pages the system may drop, not counted in the total
  std::uint64_t saved = 0;    // on disk, when the context is saved: at most

  std::uint64_t store() const { return rows + columns; }  // not mapped
  std::uint64_t total() const { return total_when(saves); }
  // Returns the most that is in the machine's memory at once, by a run that saves its context or one that decodes.
  std::uint64_t total_when(bool saved) const {
    const std::uint64_t context = saved ? saving : store() + (apart ? 0 : tails + question);
    return context + indices + host_weights + program + text + (apart ? 0 : states + workspace + weights);
  }
  std::uint64_t device() const { return apart ? computing() + scratch : 0; }  // and in the device's
  std::uint64_t computing() const { return tails + question + states + workspace + weights; }
};

// Milliseconds of one decoded token.
struct PlanTime {
  double search = 0;  // reading columns, and the selection, which is made while they are read
  double rows = 0;    // selected rows and short ranges of the store
  double dense = 0;   // all rows of the store
  double tail = 0;    // the newest tokens, and the windows of sliding-window layers
  double weights = 0;
  double experts = 0;  // reading those near the processor, or bringing over the link those that the device lacks
  double fixed = 0;    // calling the layers' operations
  double network = 0;  // between ranks, where it is given

  double total() const { return search + rows + dense + tail + weights + experts + fixed + network; }
};

// Reading the whole context in one way.
struct PlannedPrefill {
  std::string strategy;  // "exact, chunk by chunk" ...
  PrefillOptions options;
  double products = 0;   // floating-point operations of matrix products
  double attention = 0;  // and of attention; 1e21 and more for the longest contexts
  double moved = 0;      // bytes over the link to a device that computes: PrefillTraffic
  std::optional<double> seconds;
  // On request.card, by its published rates: half of its tensor cores', or the link where that takes longer.
  std::optional<double> card_seconds = {};
};

struct PlannedMethod {
  MethodOptions attn;
  Counters counters;                   // of one step, over all global layers and all ranks
  std::optional<NetworkStep> network;  // of several ranks
  std::optional<double> network_ms;    // on PlanRequest::network
  std::optional<PlanTime> ms;
  std::vector<PredictedStage> predicted;  // on PlanRequest::card, with what it keeps
  std::optional<ExpectedCache> cache;     // of a device with memory of its own that has room for one
};

// Experts that do not lie on the device with all other weights.
struct PlannedExperts {
  ExpertPlacement placement;
  int of = 0;                    // experts of a layer
  double held = 0;               // share of those asked for that the device has, by `link`
  std::uint64_t link_bytes = 0;  // over the link for each token
  std::uint64_t near_bytes = 0;  // that the processor beside the device reads for each token
  std::string divided_for = {};  // the method whose columns and rows share the device's memory with them
};

// Exact decoding of several tokens a pass (`--exact`), with the drafts of one source and PlanRequest::accepted. All is
// predicted, by token of the text: passes and drafts over the tokens that they give.
struct PlannedExact {
  std::string drafts;             // the source as --draft names it, with the method's label
  int drafted = 0;                // tokens for a pass, as many as a run drafts by its counts
  double tokens = 1;              // that a pass gives on average
  std::uint64_t link_bytes = 0;   // over the link, with what a device is expected to keep for drafts
  std::optional<double> ms;       // by the profile
  std::optional<double> card_ms;  // on PlanRequest::card
  // Memory that the source takes where the model's weights are, besides the plan's: a head's weights, and its keys and
  // values.
  std::uint64_t memory = 0;
};

// A change by which a plan that does not fit would fit: remedy().
struct Remedy {
  std::int64_t longest_tokens = 0;  // that fit with everything else as it is; 0: none do
  std::string change;               // the options of the change that costs least and makes it fit; empty: none does
  std::uint64_t memory_bytes = 0;   // that it then takes of the machine's memory,
  std::uint64_t device_bytes = 0;   // and of the device's
};

struct Plan {
  std::int64_t tokens = 0;
  int ranks = 1;  // of which this is the plan of each
  PlanMemory memory;
  std::uint64_t host_budget = 0;
  std::uint64_t device_budget = 0;
  std::string shortfall;         // what does not fit, and what would make it fit, with the numbers; empty when all fits
  std::optional<Remedy> remedy;  // as far as somebody has asked for one
  std::optional<PlannedExperts> experts;
  std::vector<PlannedMethod> methods;
  std::optional<double> accepted;   // PlanRequest::accepted
  std::vector<PlannedExact> exact;  // single steps by `dense` first; none without PlanRequest::accepted
  std::vector<PlannedPrefill> prefill;
};

// Returns whether it has room for all. Throws Error on methods whose options are out of range.
bool fits(const PlanRequest& request);

// Without a profile there are no times. Throws Error on methods whose options are out of range.
Plan make_plan(const PlanRequest& request, const MachineProfile* profile);

// The longest context whose store takes no more than `bytes`; at most what positions of 32 bits can name.
std::int64_t longest_context(const ModelConfig& config, const CacheOptions& options, std::uint64_t bytes);

std::string plan_table(const Plan& plan);               // Markdown
std::string plan_line(const Plan& plan);                // totals in one line, as long commands print them
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

}  // namespace hayloft::runtime::plan
