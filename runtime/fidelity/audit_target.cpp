#include "runtime/fidelity/audit_target.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

// A larger k that closes less than this share of what is missing does not help.
constexpr double least_gain = 0.1;

AuditTargetOptions checked(const AuditTargetOptions& options, const MethodOptions& method) {
  check_audit_target(options);
  if (method.name == "window" && method.window) {
    fail(
        "--audit-target: with --attn-window {} `window` attends to as many positions whatever its k; give --attn-k "
        "instead",
        *method.window);
  }
  return options;
}

struct Least {
  std::size_t head;
  double mass;
};

// The KV head that catches least, by its mean over the samples and its query heads.
Least least_caught(const std::deque<StepFidelity>& samples) {
  const std::size_t heads = samples.front().recall.size();
  const auto group = static_cast<std::ptrdiff_t>(samples.front().mass.size() / heads);
  Least least{0, 2};
  for (std::size_t head = 0; head < heads; ++head) {
    double sum = 0;
    for (const StepFidelity& sample : samples) {
      const auto first = sample.mass.begin() + static_cast<std::ptrdiff_t>(head) * group;
      sum += std::accumulate(first, first + group, 0.0);
    }
    const double mass = sum / static_cast<double>(samples.size() * static_cast<std::size_t>(group));
    if (mass < least.mass) least = {head, mass};
  }
  return least;
}

std::int64_t raised(std::int64_t value, double step, std::int64_t most) {
  return std::min(most, static_cast<std::int64_t>(std::ceil(static_cast<double>(value) * step)));
}

}  // namespace

void check_audit_target(const AuditTargetOptions& options) {
  if (!(options.mass > 0 && options.mass <= 1)) {
    fail("--audit-target {}: must be a share of the attention mass above 0 and up to 1, as in 95% or 0.95",
         options.mass);
  }
}

AuditTarget::AuditTarget(const MethodOptions& method, int head_dim, const AuditTargetOptions& options)
    : method_options_(method),
      head_dim_(head_dim),
      options_(checked(options, method)),
      method_(make_method(method, head_dim)) {
  MethodOptions larger = method;
  larger.k = Budget{0, 1.0};
  if (make_method(larger, head_dim)->state_key() != method_->state_key()) {
    fail(
        "--audit-target: --attn {} has read the context with its k in mind and cannot attend to more later; give a "
        "larger "
        "--attn-k instead",
        method.name);
  }
}

std::vector<std::string> AuditTarget::update(std::span<const StepFidelity> measured) {
  std::vector<std::string> lines;
  for (const StepFidelity& sample : measured) {
    Layer& layer = layers_[sample.layer];
    const bool before_raise = sample.rank < method_options_.rank || sample.k < std::min(layer.k, sample.position + 1);
    if (before_raise) continue;
    layer.recent.push_back(sample);
    if (static_cast<int>(layer.recent.size()) > options_.samples) layer.recent.pop_front();
    if (static_cast<int>(layer.recent.size()) < options_.samples) continue;
    const auto [head, mass] = least_caught(layer.recent);
    if (mass >= options_.mass) continue;
    const std::string what = raise(layer, mass);
    if (what.empty()) continue;
    lines.push_back(fmt::format("audit: head {} of layer {} catches {:.1f}% of the attention mass, not {:g}%: {}", head,
                                sample.layer, mass * 100, options_.mass * 100, what));
    method_ = make_method(method_options_, head_dim_);
    layer.recent.clear();
  }
  return lines;
}

std::string AuditTarget::raise(Layer& layer, double mass) {
  const StepFidelity& last = layer.recent.back();
  const std::int64_t k = raised(last.k, options_.step, last.position + 1);
  const bool helped =
      !layer.mass_before || mass - *layer.mass_before >= least_gain * (options_.mass - *layer.mass_before);
  if (k > last.k && (helped || method_options_.name != "sparq" || method_options_.rank == head_dim_)) {
    layer.k = k;
    layer.mass_before = mass;
    method_options_.k.set(last.global_layer, {k, 0});
    return fmt::format("k {} -> {}", last.k, k);
  }
  if (method_options_.name == "sparq" && method_options_.rank < head_dim_) {
    const int before = method_options_.rank;
    method_options_.rank = static_cast<int>(raised(before, options_.step, head_dim_));
    for (auto& [number, other] : layers_) {
      other.mass_before.reset();
      other.recent.clear();
    }
    return fmt::format("r {} -> {}, as a larger k did not help", before, method_options_.rank);
  }
  if (layer.exhausted) return {};
  layer.exhausted = true;
  return fmt::format("k is {}, and there is nothing more to raise", last.k);
}

}  // namespace hayloft::runtime
