#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/decode/sampler.h"

namespace hayloft::runtime {

// Says how the makers of a model would have its answers drawn.
struct SamplingDefaults {
  SamplerOptions options;          // where the files say nothing, the defaults; the seed is the default
  bool found = false;              // the files say something
  std::vector<std::string> notes;  // one line each about what they say and nothing here heeds
};

// Reads DIR/generation_config.json, or the same fields of DIR/config.json where it is missing, as transformers does:
// rules hold always; temperature, top_k and the like only where
// do_sample is true, then with a temperature of 1 and the 50 most likely tokens where it does not say. Of a GGUF file
// general.sampling.* and tokenizer.ggml.suppress_tokens. Throws Error naming file and field where a value is out of
// range, and where transformers or llama.cpp would draw other tokens by a field that is not supported here. Fields that
// neither knows are noted.
SamplingDefaults sampling_defaults(const std::filesystem::path& model);

}  // namespace hayloft::runtime
