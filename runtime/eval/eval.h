#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/host/arena.h"
#include "runtime/attention/method.h"
#include "runtime/attention/step_observer.h"
#include "runtime/decode/drafting.h"
#include "runtime/decode/session.h"
#include "runtime/eval/task.h"

// Evaluation: samples of tasks, each read once and then answered by every method from a fork of what was read.
namespace hayloft::runtime::eval {

inline constexpr int drafted_tokens = 12;  // of a draft, whose acceptance is measured

// One sample answered by one method.
struct EvalRow {
  std::string task;
  int sample = 0;
  std::int64_t ctx_size = 0;       // of the task
  std::int64_t prompt_tokens = 0;  // of the sample
  std::optional<double> depth;     // percent, where the sample has one
  int block_tokens = 0;            // of the store
  std::string prefill = "exact";   // prefill_label() of how the prompt was read
  bool read_whole = false;         // by another way than exact, but with no key left out
  MethodOptions attn;
  std::int64_t k = 0;       // positions attended at this length; 0 for dense
  std::int64_t window = 0;  // w at this length

  Measure measure = Measure::share;
  double score = 0;
  std::string prediction;  // as it is scored; empty where tokens were forced
  std::vector<std::string> expected;

  // Against dense attention behind the first way of reading, on the same tokens: the share of steps with the same most
  // likely token, and the mean KL(dense || method), in nats. The tokens are the sample's forced ones, else what dense
  // attention generated.
  std::optional<double> top1;
  std::optional<double> kl;
  // Says of drafts of drafted_tokens by the method in which share a pass of exact attention would accept the first
  // token, the first two, and so on, as accepted_shares(): steps agree that have the same most likely token.
  std::vector<double> accepted_shares;
  // Against exact attention over the same cache, over the first steps (EvalOptions::fidelity_steps), the layers and the
  // heads: the share of the true top-k positions among those attended, of the softmax that lies on what was attended,
  // and |y - y_exact| / |y_exact|.
  std::optional<double> recall;
  std::optional<double> mass;
  std::optional<double> output_error;
  // Judges steps that predict their errors, over the same heads: the chance that a larger error was predicted where it
  // is above 0.25 than where it is not, and the share of the predictions within a factor of 3 (Coverage).
  std::optional<double> error_auc;
  std::optional<double> error_within;

  std::optional<DraftFigures> drafts;  // counts what an answer took that was decoded by EvalOptions::drafts
  std::int64_t steps = 0;              // decoded; the figures below are per step
  gpu::Products products = gpu::Products::exact;
  offload::RowFormat rows = offload::RowFormat::f16;  // of the keys and values that were attended to in the store
  double attended_share = 0;  // of the positions of the context, over the layers and their lists
  double elements_per_token = 0;
  double positions_scored_per_token = 0;  // keys that were compared, as Counters count them
  double near_bytes_per_token = 0;
  double link_bytes_per_token = 0;
  double ms_per_token = 0;
  double prefill_seconds = 0;  // of the prompt, shared by the methods
  double prepare_seconds = 0;  // of what the method keeps beside the cache
  std::uint64_t state_bytes = 0;
  // The first rank's messages and bytes where ranks hold the context together; 0 of one machine.
  double network_messages_per_token = 0;
  double network_sent_per_token = 0;
  double network_received_per_token = 0;
};

// Says which methods answer how many samples, and what is measured of the answers.
struct EvalOptions {
  std::vector<MethodOptions> methods;
  std::vector<PrefillOptions> prefills;  // each prompt is read by all of them; empty: as `session` says
  int samples = 10;                      // of each task at each length, or as many as there are
  bool by_method = false;    // all samples of a method before the next method, instead of all methods of a sample
  bool agreement = false;    // lead every method along dense attention's answers, too
  int fidelity_steps = 8;    // of an answer: over which recall, mass and output error are measured; 0: not at all
  double auto_fidelity = 0;  // the share of the attention mass that `auto` keeps, measured as it decodes; 0: none
  // Dense attention's answers are decoded by these, several tokens a pass: the same text. What a row reads over the
  // link then counts drafts in, its other figures do not. None: a step a token. Not with `agreement`, which takes
  // single steps.
  std::optional<DraftOptions> drafts = {};
  // Is called for one answer to each sample, the first that is decoded; its time is not in ms_per_token.
  std::shared_ptr<StepObserver> observer = nullptr;
  SessionOptions session;  // cache.block_tokens 0: block_tokens_for() the length of each task
};

// Called as a run goes on; each may be empty.
struct EvalHooks {
  // Returns whether a row is there already: then it is not made again. None: all are made.
  std::function<bool(const EvalTask& task, int sample, const std::string& prefill, const MethodOptions& attn)> done;
  std::function<void(const EvalTask& task, int sample, std::int64_t prompt_tokens)> sample_started;
  PrefillProgress prefill;
  StateProgress prepare;
  std::function<void()> step;  // after every decoded token or pass; throw to stop
  std::function<void(const EvalRow& row)> row;
};

// Takes samples in order, all methods of a sample one after another unless by_method, behind one way of reading after
// the other. Answers are greedy and end with the model's end-of-text token, or where the task says so. The last 256
// tokens of a prompt, its question, are read exactly, however the rest is; of samples that share their beginning, all
// behind it. Throws Error: options out of range, a sample that cannot be made, a context that does not fit.
void run_eval(const Model& model, const Tokenizer& tokenizer, offload::Arena& arena, EvalTask& task,
              const EvalOptions& options, const EvalHooks& hooks);

}  // namespace hayloft::runtime::eval
