#pragma once

#include <cstdint>

#include "offload/json_file.h"
#include "runtime/checkpoint/config.h"

// The parts of reading a config.json that runtime/checkpoint/config.cpp puts together.
namespace hayloft::runtime {

// Far above any model there is; they keep sizes derived from the file inside an int and its lists small.
constexpr std::int64_t most_layers = 4096;
constexpr std::int64_t most_heads = 1 << 12;
constexpr std::int64_t most_width = 1 << 22;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

// Which layers slide, and which have no RoPE. The shape has been read.
void read_layers(const JsonFields& fields, ModelConfig& config);

// The parameters of RoPE, in either dialect of transformers, and what they make of max_positions.
void read_rope(const JsonFields& fields, double default_theta, ModelConfig& config);

}  // namespace hayloft::runtime
