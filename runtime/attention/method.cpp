#include "runtime/attention/method.h"

#include "offload/error.h"
#include "runtime/attention/method_option_table.h"

namespace hayloft::runtime {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Method> (*make)(const MethodOptions&);
};
constexpr Entry methods[] = {{"dense", make_dense},   {"sparq", make_sparq},     {"topk", make_topk},
                             {"window", make_window}, {"ann", make_ann},         {"flexgen", make_flexgen},
                             {"h2o", make_h2o},       {"lowrank", make_lowrank}, {"pages", make_pages},
                             {"oracle", make_oracle}};

const Entry& find(std::string_view name) {
  for (const Entry& entry : methods) {
    if (name == entry.name) return entry;
  }
  fail("--attn {}: unknown attention method; one of {}", name, fmt::join(method_names(), ", "));
}

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Entry& entry : methods) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<Method> make_method(const MethodOptions& options, int head_dim) {
  const Entry& entry = find(options.name);
  check_method_options(options, head_dim);
  return entry.make(options);
}

std::unique_ptr<MethodState> Method::load_state(const StateShape&, gpu::Backend&, std::span<const std::byte>) const {
  fail("--attn {}: keeps nothing that could have been saved", options_.name);
}

std::int32_t* positions_for(const Step& step, std::int64_t count) {
  const std::uint64_t bytes = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(count)) * sizeof(std::int32_t);
  if (step.scratch.positions.bytes() < bytes) step.scratch.positions = step.backend.allocate(bytes, step.stream);
  return step.scratch.positions.as<std::int32_t>();
}

float* alpha_for(const Step& step) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(step.query_heads) * sizeof(float);
  if (step.scratch.alpha.bytes() < bytes) step.scratch.alpha = step.backend.allocate(bytes, step.stream);
  return step.scratch.alpha.as<float>();
}

void record(const Step& step, const gpu::Attended& what) {
  if (!step.trace) return;
  StepTrace& trace = *step.trace;
  trace.lists = what.lists;
  trace.k = what.k;
  trace.ranges[0] = what.ranges[0];
  trace.ranges[1] = what.ranges[1];
  trace.positions.resize(static_cast<std::size_t>(what.lists) * static_cast<std::size_t>(what.k));
  trace.alpha.clear();
  if (!trace.positions.empty()) {
    step.backend.to_host(trace.positions.data(), what.positions, trace.positions.size() * sizeof(std::int32_t),
                         step.stream);
  }
}

}  // namespace hayloft::runtime
