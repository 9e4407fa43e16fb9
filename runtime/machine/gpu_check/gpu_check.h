#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/machine/gpu_check/gpu_check_line.h"

// What a run of scripts/gpu-check shows of the CUDA backend, compared with what it must show.
namespace hayloft::runtime::plan {

// report: a JSON object of schema hayloft.gpu-check/1, complete or not. A line for everything that is asked of a
// machine with a GPU; rates are compared with those that `hayloft link` measured in the same run. Throws Error on
// anything else.
std::vector<Shown> judge_gpu_check(const nlohmann::ordered_json& report);

}  // namespace hayloft::runtime::plan
