#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/gguf/config.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/gguf_image.h"

namespace hayloft::test {

// A small checkpoint in Hugging Face's form as the GGUF that llama.cpp's converter makes of it: other names, Q and K of
// the llama family with the components of heads in pairs, RoPE scaling as a divisor for each frequency.
class GgufFromFolder {
 public:
  explicit GgufFromFolder(const std::filesystem::path& folder)
      : config_(runtime::read_config(folder)), file_(folder / "model.safetensors") {
    const auto json = nlohmann::json::parse(std::ifstream(folder / "config.json"));
    const double base = json.contains("rope_parameters") ? json["rope_parameters"]["rope_theta"].get<double>()
                                                         : json.value("rope_theta", 10000.0);
    write_metadata(static_cast<float>(base));
    add("token_embd.weight", "model.embed_tokens.weight");
    add("output_norm.weight", "model.norm.weight");
    if (!config_.tied_embeddings) add("output.weight", "lm_head.weight");
    write_factors(static_cast<float>(base));
    for (int layer = 0; layer < config_.layers; ++layer) {
      for (const auto& [own, theirs] : names()) {
        for (const char* end : {".weight", ".bias"}) {
          const std::string name = "model.layers." + std::to_string(layer) + "." + theirs + end;
          if (file_.contains(name)) add("blk." + std::to_string(layer) + "." + own + end, name);
        }
      }
    }
  }

  GgufImage image;

 private:
  static std::vector<std::pair<std::string, std::string>> names() {
    return {{"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
            {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
            {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
            {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
            {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
            {"ffn_down", "mlp.down_proj"}};
  }

  void write_metadata(float base) {
    const std::string architecture = config_.architecture == "mistral" ? "llama" : config_.architecture;
    const auto set = [&](const char* key, int value) {
      image.set(architecture + "." + key, static_cast<std::uint32_t>(value));
    };
    image.set("general.architecture", architecture);
    set("block_count", config_.layers);
    set("context_length", static_cast<int>(config_.max_positions));
    set("embedding_length", config_.hidden_size);
    set("feed_forward_length", config_.intermediate_size);
    set("attention.head_count", config_.query_heads);
    set("attention.head_count_kv", config_.kv_heads);
    set("attention.key_length", config_.head_dim);
    set("attention.value_length", config_.head_dim);
    set("rope.dimension_count", config_.head_dim);
    image.set(architecture + ".rope.freq_base", base);
    image.set(architecture + ".attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
    image.set("tokenizer.ggml.tokens", std::vector<std::string>(static_cast<std::size_t>(config_.vocab_size), "x"));
    image.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  }

  void write_factors(float base) {
    std::string factors;
    bool scaled = false;
    for (int i = 0; i < config_.head_dim / 2; ++i) {
      const float exponent = static_cast<float>(2 * i) / static_cast<float>(config_.head_dim);
      const float plain = 1.0f / static_cast<float>(std::pow(double{base}, double{exponent}));
      const float factor = plain / config_.inverse_frequency[static_cast<std::size_t>(i)];
      scaled |= factor != 1;
      factors += GgufImage::raw(factor);
    }
    if (scaled) image.tensor("rope_freqs.weight", {static_cast<std::uint64_t>(config_.head_dim / 2)}, 0, factors);
  }

  void add(const std::string& name, const std::string& theirs) {
    const runtime::TensorView& tensor = file_.at(theirs);
    const std::uint32_t type = tensor.dtype == "F32" ? 0 : tensor.dtype == "F16" ? 1 : 30;
    std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    const bool query = theirs.find("q_proj") != std::string::npos;
    if (runtime::gguf::rows_in_pairs(config_) && (query || theirs.find("k_proj") != std::string::npos)) {
      data = in_pairs(data, query ? config_.query_heads : config_.kv_heads);
    }
    image.tensor(name, {tensor.shape.rbegin(), tensor.shape.rend()}, type, data);
  }

  // [heads][2][d / 2][...] to [heads][d / 2][2][...]
  std::string in_pairs(const std::string& rows, int heads) const {
    const auto d = static_cast<std::size_t>(config_.head_dim);
    const std::size_t bytes = rows.size() / (d * static_cast<std::size_t>(heads));  // of a row
    std::string out;
    for (std::size_t head = 0; head < static_cast<std::size_t>(heads); ++head) {
      for (std::size_t i = 0; i < d; ++i) out += rows.substr((head * d + i / 2 + i % 2 * (d / 2)) * bytes, bytes);
    }
    return out;
  }

  runtime::ModelConfig config_;
  runtime::SafetensorsFile file_;
};

}  // namespace hayloft::test
