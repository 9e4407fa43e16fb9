#include "runtime/plan/plan.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "python/src/bindings.h"
#include "python/src/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/decode/load_tokenizer.h"

// hayloft.plan: what a run will take.
namespace hayloft::python {
namespace {

namespace plans = runtime::plan;

// The plans as JSON. model: a path; empty: `shape` of layers, heads, KV heads and head dimension. The profile of this
// machine gives times where it is of the same device and threads.
std::string plan(const Machine& machine, const std::string& model, const std::vector<std::int64_t>& shape,
                 const std::vector<std::int64_t>& lengths, const std::vector<std::string>& methods, int block_tokens,
                 const std::string& columns, const std::string& rows) {
  plans::PlanRequest request;
  if (!model.empty()) {
    const auto checkpoint = runtime::Checkpoint::open(model);
    request.config = checkpoint->config();
    request.weights = runtime::weight_sizes(*checkpoint, runtime::WeightForm::stored);
    request.tokenizer_file_bytes = runtime::tokenizer_bytes(model);
  } else {
    if (shape.size() != 4) fail("shape: must be (layers, heads, KV heads, head dimension)");
    request.config = plans::config_of_shape({shape[0], shape[1], shape[2], shape[3]});
    request.weights = runtime::weight_sizes(request.config, gpu::DType::f16, runtime::WeightForm::stored);
  }
  for (const std::string& method : methods) request.methods.push_back(runtime::parse_method(method, {}));
  request.session.cache.block_tokens = block_tokens;
  request.session.cache.columns = column_format(columns);
  request.session.cache.rows = row_format(rows);
  request.threads = machine.threads.count();
  const gpu::DeviceMemory device = machine.backend->memory();
  if (device.budget_bytes > 0) request.device_budget = device.budget_bytes + device.overhead_bytes;
  request.available_bytes = machine.topology.available_bytes();
  request.host_budget = machine.host_memory ? machine.host_memory : plans::usual_host_budget(request);
  const std::optional<plans::MachineProfile> profile = plans::find_profile();
  const bool applies = profile && profile->threads == request.threads && profile->device == machine.backend->name();
  std::vector<plans::Plan> all;
  for (const std::int64_t tokens : lengths) {
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    if (tokens < 1 || tokens > most) fail("ctx_size {}: must be between 1 and {}", tokens, most);
    request.tokens = tokens;
    all.push_back(plans::make_plan(request, applies ? &*profile : nullptr));
  }
  return plans::plan_json(all);
}

}  // namespace

void bind_plan(py::module_& module) {
  module.def("plan", plan, py::call_guard<py::gil_scoped_release>());
}

}  // namespace hayloft::python
