#pragma once

#include <array>
#include <cstdint>

// Says how many tokens are worth drafting, by how often drafts were accepted and by what a pass costs. Counts alone:
// the same run drafts the same, whatever the clock says.
namespace hayloft::runtime {

// Costs of a token, in parts of a step that decodes one token.
struct DraftCosts {
  double verify = 0;  // each token that a pass verifies besides its first
  double draft = 0;   // a token that is drafted
};

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
