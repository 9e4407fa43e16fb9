#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/checkpoint/weights/expert_placement.h"

namespace hayloft::runtime::plan {

// Reads which experts a run has asked for from the JSON of its --attention-stats, as the mean over the layers, for a
// model with so many experts in a layer; 0: it has none. Throws Error naming the file, also where it is of a model with
// another number.
ExpertsHeld read_experts_held(const std::filesystem::path& path, int experts);

// Returns the same of the JSON. `where` is for errors. Throws Error.
ExpertsHeld parse_experts_held(const nlohmann::json& json, const std::string& where);

}  // namespace hayloft::runtime::plan
