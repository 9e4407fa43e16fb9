#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "offload/json_file.h"
#include "runtime/checkpoint/architecture.h"
#include "runtime/checkpoint/config.h"

// The parts of reading a config.json that runtime/checkpoint/config.cpp puts together.
namespace hayloft::runtime {

// Far above any model there is; they keep sizes derived from the file inside an int and its lists small.
constexpr std::int64_t most_layers = 4096;
constexpr std::int64_t most_heads = 1 << 12;
constexpr std::int64_t most_width = 1 << 22;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;

// Returns the architecture of model_type; it lives as long as the process.
const Architecture& find_architecture(const JsonFields& fields);

// Returns whether a model of an architecture with those fields has experts.
bool has_experts(const JsonFields& fields, const ExpertFields& has);

// Reads what its mixtures of experts are made of. The number of layers has been read. intermediate_size becomes that of
// what a token goes through.
void read_experts(const JsonFields& fields, const ExpertFields& has, ModelConfig& config);

// Refuses so many experts that their rows are beyond an int.
void require_experts(const std::string& where, const ModelConfig& config);

// Refuses fields about experts that nobody has read, by which models compute something else.
void refuse_unread_experts(const JsonFields& fields, const ModelConfig& config);

// Reads which layers slide, and which have no RoPE. The shape has been read.
void read_layers(const JsonFields& fields, ModelConfig& config);

// Refuses fields that nobody has read and that mean other weights, and notes the others, all but those that say nothing
// about what is computed. After everything else has been read.
void look_at_unread(const JsonFields& fields, ModelConfig& config);

// The same of an object in the file: notes what is among the unread but not among the known.
void note_unread(const JsonFields& fields, std::span<const std::string_view> known, ModelConfig& config);

// Reads the heads of Gemma 4's two kinds of layers. The layers have been read, and the heads as if all were alike.
void read_gemma4_heads(const JsonFields& fields, ModelConfig& config);
// Reads their RoPE. The heads have been read.
void read_gemma4_rope(const JsonFields& fields, ModelConfig& config);

// The parameters of RoPE, in either dialect of transformers, and what they make of max_positions.
void read_rope(const JsonFields& fields, double default_theta, ModelConfig& config);

}  // namespace hayloft::runtime
