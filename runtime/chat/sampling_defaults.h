#pragma once

#include <filesystem>
#include <optional>

#include "runtime/decode/sampler.h"

namespace hayloft::runtime {

// How the makers of a model would have its answers drawn: temperature, top_k, top_p and min_p of
// DIR/generation_config.json, as transformers reads them (greedy unless do_sample is true; then a temperature of 1 and
// the 50 most likely tokens where it does not say), or general.sampling.* of a GGUF file. Nothing where neither says
// anything. The seed is the default. Throws Error naming file and field.
std::optional<SamplerOptions> sampling_defaults(const std::filesystem::path& model);

}  // namespace hayloft::runtime
