#include "runtime/decode/draft_length.h"

#include <algorithm>

namespace hayloft::runtime {
namespace {

constexpr double kMemory = 48;             // tokens whose fate is remembered at full weight
constexpr double kFading = 1 - 1 / 256.0;  // of what was seen, at each time that nothing is drafted

}  // namespace

void Acceptance::add(int accepted, int drafted) {
  tried_ += std::min(accepted + 1, drafted);
  accepted_ += accepted;
  if (tried_ <= kMemory) return;
  accepted_ *= kMemory / tried_;
  tried_ = kMemory;
}

void Acceptance::pass_over() {
  tried_ *= kFading;
  accepted_ *= kFading;
}

int tokens_worth_drafting(double share, const DraftCosts& costs, int most) {
  int count = 0;
  for (double all = share; count < most && all > costs.verify + costs.draft; all *= share) ++count;
  return count;
}

Acceptance& CopyAcceptance::of(int agreement) {
  return by_length_[agreement < 5 ? 0 : agreement < 9 ? 1 : agreement < 17 ? 2 : 3];
}

}  // namespace hayloft::runtime
