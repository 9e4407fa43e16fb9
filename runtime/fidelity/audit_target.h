#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/attention/method.h"
#include "runtime/fidelity/audit_sample.h"

namespace hayloft::runtime {

struct AuditTargetOptions {
  double mass = 0.95;  // of the exact softmax that every head is to catch, above 0 and up to 1
  int samples = 4;     // recent ones of a layer that a decision is taken on
  double step = 1.5;   // what k, or r, is multiplied by
};
void check_audit_target(const AuditTargetOptions& options);  // throws Error naming the option

// Raises a method's k until its heads catch the attention mass they should: layer by layer, as the audit's measurements
// come in. Lists of positions are rectangular, so that a layer's heads share its k: the one that catches least decides.
// Where a larger k stops helping `sparq`, which may look at the wrong positions, r is raised instead, for all layers.
// Nothing is ever lowered. Not thread-safe.
class AuditTarget {
 public:
  AuditTarget(const MethodOptions& method, int head_dim, const AuditTargetOptions& options = {});

  // The one to decode the next step with, until update() has raised something.
  const SharedMethod& method() const { return method_; }

  // Takes in what has been measured and says what has been raised, one line for each. Measurements of steps that were
  // made before the last raise of their layer do not count.
  std::vector<std::string> update(std::span<const StepFidelity> measured);

 private:
  struct Layer {
    std::deque<StepFidelity> recent;
    std::int64_t k = 0;                 // what k was raised to; 0: not yet
    std::optional<double> mass_before;  // of the head that caught least, before k was last raised
    bool exhausted = false;             // there is nothing more to raise, and it has been said
  };
  // What was raised, in words; empty when that is nothing.
  std::string raise(Layer& layer, double mass);

  MethodOptions method_options_;
  int head_dim_;
  AuditTargetOptions options_;
  SharedMethod method_;
  std::map<int, Layer> layers_;  // by the model's layer
};

}  // namespace hayloft::runtime
