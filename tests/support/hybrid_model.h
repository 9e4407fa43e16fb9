#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "offload/half.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::test {

struct HybridShape {
  int layers = 4;  // every fourth attends
  int hidden = 64;
  int kv_heads = 2;
  int value_heads = 4;
  int value_dim = 32;
};

// A model of type qwen3_5_text with random weights, in the folder, with the needle model's tokenizer.
inline std::filesystem::path write_hybrid_model(const std::filesystem::path& folder, const HybridShape& shape = {}) {
  const int vocabulary = 5120, inner = 2 * shape.hidden, heads = 4, d = 32, key_heads = 2, key_dim = 16, kernel = 4;
  const int values = shape.value_heads * shape.value_dim, channels = 2 * key_heads * key_dim + values;
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json")
      << R"({"model_type": "qwen3_5_text", "vocab_size": )" << vocabulary << R"(, "hidden_size": )" << shape.hidden
      << R"(, "intermediate_size": )" << inner << R"(, "num_hidden_layers": )" << shape.layers
      << R"(, "num_attention_heads": )" << heads << R"(, "num_key_value_heads": )" << shape.kv_heads
      << R"(, "head_dim": )" << d << R"(, "linear_conv_kernel_dim": )" << kernel << R"(, "linear_key_head_dim": )"
      << key_dim << R"(, "linear_value_head_dim": )" << shape.value_dim << R"(, "linear_num_key_heads": )" << key_heads
      << R"(, "linear_num_value_heads": )" << shape.value_heads
      << R"(, "max_position_embeddings": 262144, "tie_word_embeddings": true, "eos_token_id": 0})";
  std::vector<runtime::TensorHeader> headers;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> of) { headers.push_back({name, "F16", of}); };
  add("model.embed_tokens.weight", {vocabulary, shape.hidden});
  add("model.norm.weight", {shape.hidden});
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {shape.hidden});
    add(prefix + "post_attention_layernorm.weight", {shape.hidden});
    add(prefix + "mlp.gate_proj.weight", {inner, shape.hidden});
    add(prefix + "mlp.up_proj.weight", {inner, shape.hidden});
    add(prefix + "mlp.down_proj.weight", {shape.hidden, inner});
    if ((layer + 1) % 4 == 0) {
      add(prefix + "self_attn.q_proj.weight", {2 * heads * d, shape.hidden});
      add(prefix + "self_attn.k_proj.weight", {shape.kv_heads * d, shape.hidden});
      add(prefix + "self_attn.v_proj.weight", {shape.kv_heads * d, shape.hidden});
      add(prefix + "self_attn.o_proj.weight", {shape.hidden, heads * d});
      add(prefix + "self_attn.q_norm.weight", {d});
      add(prefix + "self_attn.k_norm.weight", {d});
      continue;
    }
    add(prefix + "linear_attn.in_proj_qkv.weight", {channels, shape.hidden});
    add(prefix + "linear_attn.in_proj_z.weight", {values, shape.hidden});
    add(prefix + "linear_attn.in_proj_a.weight", {shape.value_heads, shape.hidden});
    add(prefix + "linear_attn.in_proj_b.weight", {shape.value_heads, shape.hidden});
    add(prefix + "linear_attn.conv1d.weight", {channels, 1, kernel});
    add(prefix + "linear_attn.A_log", {shape.value_heads});
    add(prefix + "linear_attn.dt_bias", {shape.value_heads});
    add(prefix + "linear_attn.norm.weight", {shape.value_dim});
    add(prefix + "linear_attn.out_proj.weight", {shape.hidden, values});
  }
  std::mt19937 random(9);
  runtime::SafetensorsWriter out(folder / "model.safetensors", headers);
  for (const runtime::TensorHeader& header : headers) {
    std::size_t count = 1;
    for (const std::int64_t size : header.shape) count *= static_cast<std::size_t>(size);
    const bool small = header.shape.size() == 1;  // norms and the like, about zero
    const double size = small ? 0.2 : 1 / std::sqrt(static_cast<double>(header.shape.back()));
    std::normal_distribution<double> normal(header.name.ends_with("linear_attn.norm.weight") ? 1 : 0, size);
    std::vector<f16> data(count);
    for (f16& each : data) each = to_f16(static_cast<float>(normal(random)));
    out.write(std::as_bytes(std::span(data)));
  }
  out.commit();
  const std::filesystem::path needle = std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(needle / name, folder / name, std::filesystem::copy_options::overwrite_existing);
  }
  return folder;
}

}  // namespace hayloft::test
