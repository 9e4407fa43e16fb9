#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/attention/counters.h"
#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/weights/weights.h"

// Says how many tokens are worth drafting, by how often drafts were accepted and by what a pass costs. Counts alone:
// the same run drafts the same, whatever the clock says.
namespace hayloft::runtime {

// Costs of a token, in parts of a step that decodes one token.
struct DraftCosts {
  double verify = 0;  // each token that a pass verifies besides its first
  double draft = 0;   // a token that is drafted
  // Besides `verify`, the experts that a token goes through, as long as a pass has no more tokens than would go through
  // all of them.
  double experts = 0;
  double tokens_of_all_experts = 1;

  // Returns what the token with that number, 1 or more, behind the first of a pass costs, with its draft.
  double of_token(int number) const;
  // Returns what a pass costs of one token and `drafted` more, with their drafts.
  double of_pass(int drafted) const;
};

// Says where drafts come from: copies from the text, steps by a method, or the model's head that predicts further
// tokens.
enum class DraftSource : std::uint8_t { text, method, head };

// Says what a drafted token goes through: weights, and what is attended to in all layers.
struct DraftStep {
  const WeightSizes& weights;
  Counters counters;
};

// Returns the costs as parts of a dense step's, by what that step reads and multiplies (`dense`) and what one of a
// draft does (`drafted`, none where drafts are copies), in all layers. `device`: the step is computed on a device with
// memory of its own.
DraftCosts draft_costs(const ModelConfig& config, const WeightSizes& weights, const Counters& dense,
                       const std::optional<DraftStep>& drafted, bool device);

// Returns how many tokens a pass gives on average, of which `share` (0 to 1) of the `drafted` is accepted, each where
// those before it are: the accepted, and the one that is drawn behind them.
double tokens_of_pass(double share, int drafted);

// Estimates how often a drafted token is the one that is drawn, where those before it were: from a guess that weighs a
// few tokens, and what has been seen since, the old at a lesser weight.
class Acceptance {
 public:
  explicit Acceptance(double guess) : guess_(guess) {}

  double share() const { return (accepted_ + guess_weight * guess_) / (tried_ + guess_weight); }
  // `accepted` of `drafted` tokens were; the first that was not was tried too, those behind it were not.
  void add(int accepted, int drafted);
  // Nothing was drafted where this would have said how much: what was seen fades, so that it is tried again some time.
  void pass_over();

 private:
  static constexpr double guess_weight = 4;
  double guess_;
  double tried_ = 0;
  double accepted_ = 0;
};

// Counts the tokens to draft, at most `most`: each as long as it is as likely to be accepted, with all before it, as it
// costs.
int tokens_worth_drafting(double share, const DraftCosts& costs, int most);

// Keeps how copies from the text were accepted, by how much of it agreed.
class CopyAcceptance {
 public:
  Acceptance& of(int agreement);

 private:
  std::array<Acceptance, 4> by_length_ = {Acceptance(0.5), Acceptance(0.6), Acceptance(0.8), Acceptance(0.93)};
};

}  // namespace hayloft::runtime
