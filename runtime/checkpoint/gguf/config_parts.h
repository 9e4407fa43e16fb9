#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/gguf/file.h"
#include "runtime/checkpoint/gguf/keys.h"

// The parts of reading a GGUF's metadata that runtime/checkpoint/gguf/config.cpp puts together.
namespace hayloft::runtime::gguf {

// Far above any model there is; they keep sizes derived from the file inside an int and its lists small.
constexpr std::int64_t most_blocks = 4096;
constexpr std::int64_t most_heads_of_layer = 1 << 12;
constexpr std::int64_t most_channels = 1 << 22;
constexpr std::int64_t most_positions = std::int64_t{1} << 40;

// The parts of an architecture that its files do not name.
struct GgufArchitecture {
  const char* name;
  bool pairs = false;  // see rows_in_pairs
  bool qk_norm = false;
  int rope_free_interval = 0;  // every so many-th layer has no RoPE; 0: all have it
  Norms norms = Norms::before;
  const char* expert_width = nullptr;  // the key that says how wide an expert is; null: there are none
  bool experts_everywhere = true;      // or only in files that count some
  bool widths_follow = false;          // where no key says how wide experts are, it follows from feed_forward_length
  bool share_of_chosen = true;         // see runtime::Experts
  int window_pattern = 0;  // where some layers slide, every so many-th does not, unless the file says so; 0: all slide
};
// Null: there is none of this name.
const GgufArchitecture* find_gguf_architecture(std::string_view name);

// Reads which layers slide, which are of gated delta rules and which have no RoPE. The shape has been read.
void read_gguf_layers(const Keys& keys, ModelConfig& config);

// Reads the heads of a model whose sliding layers may have others than its global ones (gemma4). The layers have been
// read.
void read_gguf_heads_by_kind(const Keys& keys, const Tensors& tensors, ModelConfig& config);

// RoPE of global layers and of those that slide, which have been read.
void read_gguf_rope(const Keys& keys, const Tensors& tensors, ModelConfig& config);

// Refuses keys that nobody has read and by which llama.cpp computes something else, and notes the others, all but those
// that say nothing about what is computed.
void look_at_unread_keys(const Keys& keys, ModelConfig& config);

}  // namespace hayloft::runtime::gguf
