#pragma once

#include <algorithm>
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
  bool head = false;    // with a head that predicts further tokens
  int experts = 0;      // of each layer, two for a token, beside one of all; 0: none
  bool copies = false;  // attention and MLPs give nothing, so that the token that follows is the same, also by the head
};

// A model of type qwen3_5_text, or qwen3_5_moe_text, with random weights, in the folder, with the needle model's
// tokenizer.
inline std::filesystem::path write_hybrid_model(const std::filesystem::path& folder, const HybridShape& shape = {}) {
  const int vocabulary = 5120, inner = 2 * shape.hidden, heads = 4, d = 32, key_heads = 2, key_dim = 16, kernel = 4;
  const int values = shape.value_heads * shape.value_dim, channels = 2 * key_heads * key_dim + values;
  std::filesystem::create_directories(folder);
  const int experts = shape.experts, expert_inner = 16;
  std::ofstream(folder / "config.json")
      << R"({"model_type": "qwen3_5_)" << (experts > 0 ? "moe_text" : "text") << R"(", "vocab_size": )" << vocabulary
      << R"(, "hidden_size": )" << shape.hidden << R"(, "intermediate_size": )" << inner << R"(, "num_hidden_layers": )"
      << shape.layers << R"(, "num_attention_heads": )" << heads << R"(, "num_key_value_heads": )" << shape.kv_heads
      << R"(, "head_dim": )" << d << R"(, "linear_conv_kernel_dim": )" << kernel << R"(, "linear_key_head_dim": )"
      << key_dim << R"(, "linear_value_head_dim": )" << shape.value_dim << R"(, "linear_num_key_heads": )" << key_heads
      << R"(, "linear_num_value_heads": )" << shape.value_heads
      << (shape.head ? R"(, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false)" : "")
      << (experts > 0
              ? R"(, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16)"
                R"(, "num_experts": )" +
                    std::to_string(experts)
              : "")
      << R"(, "max_position_embeddings": 262144, "tie_word_embeddings": true, "eos_token_id": 0})";
  std::vector<runtime::TensorHeader> headers;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> of) { headers.push_back({name, "F16", of}); };
  add("model.embed_tokens.weight", {vocabulary, shape.hidden});
  add("model.norm.weight", {shape.hidden});
  const auto add_mlp = [&](const std::string& prefix, int width) {
    add(prefix + "gate_proj.weight", {width, shape.hidden});
    add(prefix + "up_proj.weight", {width, shape.hidden});
    add(prefix + "down_proj.weight", {shape.hidden, width});
  };
  for (int layer = 0; layer < shape.layers + (shape.head ? 1 : 0); ++layer) {
    const bool head = layer == shape.layers;
    const std::string prefix = head ? "mtp.layers.0." : "model.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {shape.hidden});
    add(prefix + "post_attention_layernorm.weight", {shape.hidden});
    if (experts > 0) {
      add(prefix + "mlp.gate.weight", {experts, shape.hidden});
      add(prefix + "mlp.shared_expert_gate.weight", {1, shape.hidden});
      add_mlp(prefix + "mlp.shared_expert.", expert_inner);
      for (int i = 0; i < experts; ++i) add_mlp(prefix + "mlp.experts." + std::to_string(i) + ".", expert_inner);
    } else {
      add_mlp(prefix + "mlp.", inner);
    }
    if (head || (layer + 1) % 4 == 0) {
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
  if (shape.head) {
    add("mtp.fc.weight", {shape.hidden, 2 * shape.hidden});
    for (const char* norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}) {
      add(std::string("mtp.") + norm + ".weight", {shape.hidden});
    }
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
    const bool gives = header.name.ends_with("o_proj.weight") || header.name.ends_with("out_proj.weight") ||
                       header.name.ends_with("down_proj.weight");
    const bool outer = header.name.starts_with("mtp.") && !header.name.starts_with("mtp.layers.");
    if (shape.copies && (gives || outer || header.name == "model.norm.weight")) {
      std::fill(data.begin(), data.end(), to_f16(0));
    }
    if (shape.copies && header.name == "mtp.fc.weight") {  // the embedding alone
      for (std::size_t i = 0; i < static_cast<std::size_t>(shape.hidden); ++i) {
        data[i * 2 * static_cast<std::size_t>(shape.hidden) + i] = to_f16(1);
      }
    }
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
