#pragma once

#include <array>
#include <cstdint>
#include <filesystem>

namespace hayloft::runtime {

// What a model directory computes with, in 16 bytes: a saved context opens only with the model that made it. Covers
// config.json, tokenizer.json, and of every .safetensors file its size, its beginning and pages spread evenly over it:
// enough to tell two fine-tunings apart without reading all of a large model. Throws Error on what cannot be read.
using Fingerprint = std::array<std::uint8_t, 16>;

Fingerprint fingerprint(const std::filesystem::path& model_directory);

}  // namespace hayloft::runtime
