#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/attention/approximate_tokens.h"
#include "runtime/attention/predicted_error.h"
#include "runtime/attention/step_observer.h"
#include "runtime/cache/cache.h"
#include "runtime/decode/attention_policy.h"

namespace hayloft::runtime {

// Says how the decoded tokens of one session attend: by a method that is bound to what it keeps of the sequence, before
// observers, into counters. It is bound once, not at every token.
class DecodeAttention : public AttentionPolicy {
 public:
  // From now on by `method`, with its state of this sequence: null for methods without; it must outlive the binding.
  void bind(SharedMethod method, MethodState* state);
  const SharedMethod& method() const { return method_; }

  // By whom from now on; in this process alone until then.
  void attend_by(SharedAttender attender) { attender_ = std::move(attender); }

  void add_observer(std::shared_ptr<StepObserver> observer);

  // Brings the state up to the cache, as it is before the token. Throws Error where the method cannot go on from it.
  void begin_step(const Cache& cache);
  void attend(const LayerStep& at, const float* q, int queries, int rows, float* out) override;  // of one token
  // Leaves what ranges alone are to be attended to, unless an observer wants the step.
  std::optional<gpu::Attended> attend_or_leave(const LayerStep& at, const float* q, float* out) override;
  bool is_watched() const override { return !observers_.empty(); }
  void see_experts(int layer, std::int64_t position, int of, std::span<const int> chosen) override;

  // Returns how many tokens, that of `position` the first, no observer wants to see: without observers any number.
  std::int64_t unwanted_from(std::int64_t position) const;
  // Adds `tokens` steps that attended exactly, and that no observer has been asked about, to so many positions in each
  // of the global layers in all, and what that cost.
  void count_exact(const Counters& cost, std::int64_t tokens, std::int64_t positions, int layers);

  // The counters of all steps. read_counters(): with what the device had of the columns counted where it was read,
  // which may wait for the device.
  Counters counters;
  PredictedError predicted;  // by those steps that know it
  Counters read_counters() const;
  // Returns the share of the bytes of one kind that lie in host memory which the device had: of columns, scales, or
  // rows of lists. 0 where nothing is kept.
  double held_share(Kind kind) const;
  // Positions attended to, the mean over the lists of each step and layer, summed over both.
  double positions_attended() const { return positions_attended_; }
  // Returns the tokens whose steps left positions out; over ranks, where nobody counts them, all not of `dense`.
  const ApproximateTokens& approximate_tokens() const { return approximate_; }
  // By how many steps x layers each method has attended, by its label (method_label).
  std::map<std::string, std::int64_t> used() const;

 private:
  using Observers = std::vector<StepObserver*>;
  // The choice for one global layer: who attends, while the store holds as many tokens and tail_part() stays.
  struct Choice {
    const Method* method = nullptr;
    std::int64_t store_tokens = 0;
    std::int64_t tail_part = 0;
    std::int64_t steps = 0;  // that it has attended
    bool noted = false;      // in approximate_
  };
  Observers interested_in(const LayerStep& at) const;
  StepPlan plan(const LayerStep& at);
  void attend_before(const Observers& interested, const StepPlan& plan, const LayerStep& at, const float* q,
                     float* out);
  void count(const Method& by, const Counters& of_step, const LayerStep& at);
  static void add_use(const Choice& choice, std::map<std::string, std::int64_t>& used);

  void learn_backend(const LayerStep& at);

  SharedMethod method_;
  MethodState* state_ = nullptr;
  SharedAttender attender_ = local_attender();
  std::vector<std::shared_ptr<StepObserver>> observers_;
  gpu::Backend* backend_ = nullptr;           // of the steps, once there was one; its memory is `held_`
  gpu::Buffer held_;                          // u64 [5], Step::held_bytes of all steps; empty where nothing is kept
  std::vector<Choice> choices_;               // by global layer
  std::map<std::string, std::int64_t> used_;  // before those choices
  double positions_attended_ = 0;
  ApproximateTokens approximate_;
};

}  // namespace hayloft::runtime
