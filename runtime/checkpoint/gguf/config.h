#pragma once

#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime::gguf {

// A divisor for each frequency of RoPE, which goes into ModelConfig; Llama 3.1's scaling comes that way.
inline constexpr const char* rope_factors_name = "rope_freqs.weight";

// What a GGUF's metadata and tensors say of the model. Architectures: llama (Mistral's files are of it too), qwen2,
// qwen3, smollm3. Throws Error naming file and key: unknown architecture, a key missing or out of range, RoPE scaling
// other than none, linear and the factors in rope_freqs.weight, experts.
ModelConfig read_config(const File& file);

// Whether the rows of Q and K lie in pairs of components (2i, 2i + 1), as ggml's RoPE for this architecture takes them,
// where hayloft's and Hugging Face's are (i, i + d/2).
bool rows_in_pairs(const ModelConfig& config);

}  // namespace hayloft::runtime::gguf
