#pragma once

#include <string_view>

#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime::gguf {

// Returns whether the tensor holds divisors of RoPE's frequencies, which go into ModelConfig: Llama 3.1's scaling and
// longrope.
bool holds_rope_factors(std::string_view tensor);

// Returns how many of the file's blocks, its last, are not the language model's: they predict several tokens at once.
int blocks_behind(const Metadata& metadata);

// Reads what a GGUF's metadata and tensors say of the model. Architectures: llama (Mistral's files are of it too),
// mistral3, qwen2, qwen3, qwen35, smollm3, gemma3, gemma4, phi3, granite, olmo2; config.architecture is that name.
// Throws Error naming file and key: unknown architecture, a key missing or out of range, an unknown RoPE scaling,
// experts.
ModelConfig read_config(const File& file);
ModelConfig read_config(const Metadata& metadata, const Tensors& tensors);

// Returns whether the rows of Q and K lie in pairs of components (2i, 2i + 1), as ggml's RoPE for this architecture
// takes them, where hayloft's and Hugging Face's are (i, i + d/2).
bool rows_in_pairs(const ModelConfig& config);

}  // namespace hayloft::runtime::gguf
