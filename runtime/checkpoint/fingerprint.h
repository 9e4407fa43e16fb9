#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace hayloft::runtime {

// Identifies what a model computes with, in 16 bytes: a saved context opens only with the model that made it. Covers of
// a folder config.json and tokenizer.json, and of every .safetensors file its name, of these and GGUF files the size,
// the beginning, with all metadata of a GGUF file, and pages spread evenly over it: enough to tell two fine-tunings
// apart without reading all of a large model. A GGUF file may be renamed. Throws Error on what cannot be read.
using Fingerprint = std::array<std::uint8_t, 16>;

// run: what else it is computed with, as Model::run_options().
Fingerprint fingerprint(const std::filesystem::path& model, std::string_view run = {});

// Returns the fingerprint that contexts of a GGUF file have which were saved when of long metadata the beginning alone
// counted, or, of a file whose metadata are short, when its name did. now: its fingerprint() of today.
Fingerprint former_fingerprint(const std::filesystem::path& model, const Fingerprint& now, std::string_view run = {});

}  // namespace hayloft::runtime
