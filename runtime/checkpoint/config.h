#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hayloft::runtime {

// A decoder-only transformer as its config.json describes it. Architectures: llama, mistral,
// ministral (a mistral with layer_types), qwen2, qwen3, smollm3.
struct ModelConfig {
  std::string architecture;  // config.json's model_type
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int query_heads = 0;  // Hq
  int kv_heads = 0;     // Hkv, a divisor of Hq
  int head_dim = 0;     // d, a multiple of 8 up to 256
  float rms_norm_eps = 1e-6f;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of the attention's output projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMS norm over each head of q and k before RoPE (qwen3)

  std::vector<std::int64_t> sliding_window;  // [layers]: 0 = global, else positions attended, the own one included
  std::vector<bool> rope;                    // [layers]: false = NoPE
  std::vector<float> inverse_frequency;      // [d / 2], RoPE scaling applied
  std::int64_t max_positions = 0;            // what the model was made for, RoPE scaling included. Not a limit here.
  std::vector<std::int32_t> eos_tokens;      // may be empty

  int group_size() const { return query_heads / kv_heads; }
  int global_layers() const;  // how many layers have a cache in host memory
};

// Reads DIR/config.json (and generation_config.json for the end-of-text tokens, if it is there). Throws Error naming
// the file and field: unknown architecture, missing or mistyped field, a value out of range, a RoPE scaling other than
// none, linear, llama3.
ModelConfig read_config(const std::filesystem::path& directory);

}  // namespace hayloft::runtime
