#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/gguf/config.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/support/gguf_image.h"

namespace hayloft::test {

// A small checkpoint in Hugging Face's form as the GGUF that llama.cpp's converter makes of it: other names, Q and K of
// the llama family with the components of heads in pairs, Llama 3's RoPE scaling as a divisor for each frequency,
// Gemma's norms plus one.
class GgufFromFolder {
 public:
  explicit GgufFromFolder(const std::filesystem::path& folder)
      : config_(runtime::read_config(folder)), file_(folder / "model.safetensors") {
    write_metadata();
    add("token_embd.weight", "model.embed_tokens.weight");
    add("output_norm.weight", "model.norm.weight");
    if (!config_.tied_embeddings) add("output.weight", "lm_head.weight");
    write_rope();
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
  std::vector<std::pair<std::string, std::string>> names() const {
    std::vector<std::pair<std::string, std::string>> list = {
        {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
        {"attn_k_norm", "self_attn.k_norm"}, {"attn_qkv", "self_attn.qkv_proj"},  {"ffn_gate", "mlp.gate_proj"},
        {"ffn_up", "mlp.up_proj"},           {"ffn_up", "mlp.gate_up_proj"},      {"ffn_down", "mlp.down_proj"}};
    if (config_.norms == runtime::Norms::before) {
      list.emplace_back("ffn_norm", "post_attention_layernorm");
    } else {
      list.emplace_back("post_attention_norm", "post_attention_layernorm");
      list.emplace_back("ffn_norm", "pre_feedforward_layernorm");
      list.emplace_back("post_ffw_norm", "post_feedforward_layernorm");
    }
    return list;
  }

  std::string architecture() const {
    if (config_.architecture == "mistral") return "llama";
    if (config_.architecture == "gemma3_text") return "gemma3";
    return config_.architecture == "ministral3" ? "mistral3" : config_.architecture;
  }
  void set(const char* key, std::int64_t value) {
    image.set(architecture() + "." + key, static_cast<std::uint32_t>(value));
  }
  void set_number(const char* key, double value) { image.set(architecture() + "." + key, static_cast<float>(value)); }

  void write_metadata() {
    image.set("general.architecture", architecture());
    set("block_count", config_.layers);
    set("context_length", config_.max_positions);
    set("embedding_length", config_.hidden_size);
    set("feed_forward_length", config_.intermediate_size);
    set("attention.head_count", config_.query_heads);
    set("attention.head_count_kv", config_.kv_heads);
    set("attention.key_length", config_.head_dim);
    set("attention.value_length", config_.head_dim);
    set_number("attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
    const auto widest = std::max_element(config_.sliding_window.begin(), config_.sliding_window.end());
    if (*widest > 0) set("attention.sliding_window", *widest);
    if (config_.architecture == "gemma3_text") {
      std::vector<std::int32_t> slides;
      for (const std::int64_t window : config_.sliding_window) slides.push_back(window > 0);
      image.set("gemma3.attention.sliding_window_pattern", slides);
    }
    if (config_.architecture == "granite") {
      set_number("embedding_scale", config_.embedding_scale);
      set_number("residual_scale", config_.residual_scale);
      set_number("attention.scale", config_.attention_scale);
      set_number("logit_scale", 1 / config_.logit_scale);
    }
    if (config_.query_log_scale > 0) set_number("attention.temperature_scale", config_.query_log_scale);
    image.set("tokenizer.ggml.tokens", std::vector<std::string>(static_cast<std::size_t>(config_.vocab_size), "x"));
    image.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  }

  void write_rope() {
    const runtime::RopeParameters& rope = config_.global_rope;
    set("rope.dimension_count", rope.dimensions);
    set_number("rope.freq_base", rope.base);
    if (config_.local_rope.dimensions > 0) set_number("rope.freq_base_swa", config_.local_rope.base);
    switch (rope.scaling) {
      case runtime::RopeScaling::llama3:
        return write_factors(rope);
      case runtime::RopeScaling::longrope:
        set("rope.scaling.original_context_length", rope.original_positions);
        set_number("rope.scaling.attn_factor", config_.global_table.magnitude);
        write_floats("rope_factors_long.weight", rope.long_factors);
        return write_floats("rope_factors_short.weight", rope.short_factors);
      case runtime::RopeScaling::linear:
        image.set(architecture() + ".rope.scaling.type", std::string("linear"));
        return set_number("rope.scaling.factor", rope.factor);
      case runtime::RopeScaling::yarn:
        image.set(architecture() + ".rope.scaling.type", std::string("yarn"));
        set_number("rope.scaling.factor", rope.factor);
        set("rope.scaling.original_context_length", rope.original_positions);
        set_number("rope.scaling.yarn_beta_fast", rope.beta_fast);
        set_number("rope.scaling.yarn_beta_slow", rope.beta_slow);
        if (rope.mscale_all > 0) set_number("rope.scaling.yarn_log_multiplier", rope.mscale_all);
        return;
      default:
        return;
    }
  }

  void write_floats(const std::string& name, const std::vector<float>& numbers) {
    std::string bytes;
    for (const float each : numbers) bytes += GgufImage::raw(each);
    image.tensor(name, {numbers.size()}, 0, bytes);
  }

  void write_factors(const runtime::RopeParameters& rope) {
    std::vector<float> factors =
        runtime::rope_table({.base = rope.base, .dimensions = rope.dimensions}, 0).inverse_frequency;
    for (std::size_t i = 0; i < factors.size(); ++i) factors[i] /= config_.global_table.inverse_frequency[i];
    write_floats("rope_freqs.weight", factors);
  }

  void add(const std::string& name, const std::string& theirs) {
    const runtime::TensorView& tensor = file_.at(theirs);
    const std::uint32_t type = tensor.dtype == "F32" ? 0 : tensor.dtype == "F16" ? 1 : 30;
    std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    if (config_.norms_less_one && theirs.find("norm") != std::string::npos) {
      std::string plus_one;
      for (const float each : runtime::to_f32(tensor, theirs)) plus_one += GgufImage::raw(each + 1);
      return image.tensor(name, {tensor.shape.rbegin(), tensor.shape.rend()}, 0, plus_one);
    }
    const bool query = theirs.find("q_proj") != std::string::npos;
    runtime::ModelConfig named = config_;
    named.architecture = architecture();
    if (runtime::gguf::rows_in_pairs(named) && (query || theirs.find("k_proj") != std::string::npos)) {
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
