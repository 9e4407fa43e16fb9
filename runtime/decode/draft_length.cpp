#include "runtime/decode/draft_length.h"

#include <algorithm>
#include <numeric>

namespace hayloft::runtime {
namespace {

constexpr double kMemory = 48;             // tokens whose fate is remembered at full weight
constexpr double kFading = 1 - 1 / 256.0;  // of what was seen, at each time that nothing is drafted

// Costs in bytes that a processor reads, or that a device reads over its link. A multiplication and addition takes a
// processor less time than it takes to read a byte: 0.3 to 0.4 of it was measured with AVX-512; a device has
// arithmetic to spare, and its own memory gives some twenty times what its link does.
struct Rates {
  double product;
  double device_byte;
};
constexpr Rates kProcessor{0.5, 1}, kDevice{0.02, 0.05};

}  // namespace

double DraftCosts::of_token(int number) const {
  return verify + draft + experts * std::clamp(tokens_of_all_experts - number, 0.0, 1.0);
}

double DraftCosts::of_pass(int drafted) const {
  double sum = 1;
  for (int number = 1; number <= drafted; ++number) sum += of_token(number);
  return sum;
}

DraftCosts draft_costs(const ModelConfig& config, const WeightSizes& weights, const Counters& dense,
                       const std::optional<DraftStep>& drafted, bool device) {
  const Rates rates = device ? kDevice : kProcessor;
  const auto read = [&](const DraftStep& of) {
    return static_cast<double>(of.counters.total(Place::link) + of.counters.total(Place::near)) +
           rates.device_byte * static_cast<double>(of.counters.total(Place::device) + of.weights.bytes_per_step);
  };
  const auto computed = [&](const DraftStep& of) {
    const auto& weights_of_step = of.weights.weights_per_step;
    const double multiplied = std::accumulate(weights_of_step.begin(), weights_of_step.end(), 0.0);
    return rates.product * (multiplied + static_cast<double>(of.counters.elements) * config.group_size());
  };
  const DraftStep exact{weights, dense};
  const double step = read(exact) + computed(exact);
  DraftCosts costs{computed(exact) / step, drafted ? (read(*drafted) + computed(*drafted)) / step : 0};
  costs.experts = rates.device_byte * static_cast<double>(weights.expert_bytes_per_step) / step;
  costs.tokens_of_all_experts = weights.tokens_of_all_experts;
  return costs;
}

double tokens_of_pass(double share, int drafted) {
  double tokens = 1;
  for (double all = share; drafted > 0; --drafted, all *= share) tokens += all;
  return tokens;
}

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
  for (double all = share; count < most && all > costs.of_token(count + 1); all *= share) ++count;
  return count;
}

Acceptance& CopyAcceptance::of(int agreement) {
  return by_length_[agreement < 5 ? 0 : agreement < 9 ? 1 : agreement < 17 ? 2 : 3];
}

}  // namespace hayloft::runtime
