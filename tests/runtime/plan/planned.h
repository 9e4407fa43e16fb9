#pragma once

#include <cstdint>
#include <vector>

#include "runtime/attention/method_options.h"
#include "runtime/plan/plan.h"

// The subjects of the planner's tests: a few methods, and the shape of a model that is not there.
namespace hayloft::runtime::plan {

inline std::vector<MethodOptions> every_method() {
  std::vector<MethodOptions> methods;
  for (const char* text : {"dense", "sparq:r=4:k=24", "topk:k=20:window=4", "window:k=30:sinks=3"}) {
    methods.push_back(parse_method(text, {}));
  }
  return methods;
}

inline PlanRequest llama_3_8b() {
  PlanRequest request;
  request.config = config_of_shape({32, 32, 8, 128, 0, 0, 0});
  request.weights = weight_sizes(request.config, gpu::DType::f16);
  request.methods = every_method();
  request.tokens = 1 << 20;
  request.host_budget = request.available_bytes = std::uint64_t{1} << 40;
  return request;
}

}  // namespace hayloft::runtime::plan
