#pragma once

#include <algorithm>
#include <cmath>
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
// the norms of Gemma and Qwen 3.5 plus one, Qwen 3.5's value heads in turns and behind its layers a block that predicts
// several tokens.
class GgufFromFolder {
 public:
  explicit GgufFromFolder(const std::filesystem::path& folder)
      : config_(runtime::read_config(folder)), file_(folder / "model.safetensors") {
    write_metadata();
    add("token_embd.weight", "model.embed_tokens.weight");
    add("output_norm.weight", "model.norm.weight");
    if (!config_.tied_embeddings) add("output.weight", "lm_head.weight");
    write_rope();
    const auto checkpoint = runtime::Checkpoint::open(folder);
    for (int layer = 0; layer < config_.layers; ++layer) {
      add_usual(layer, "model.layers." + std::to_string(layer) + ".");
      if (config_.kind(layer) == runtime::LayerKind::recurrent) add_delta(layer);
      if (config_.experts.in(layer)) {
        add_experts(*checkpoint, layer, "model.layers." + std::to_string(layer) + ".mlp.");
      }
      if (config_.layer_scales) add_gemma4(layer);
      const std::string sinks = "model.layers." + std::to_string(layer) + ".self_attn.sinks";
      if (config_.attention_sinks) add("blk." + std::to_string(layer) + ".attn_sinks.weight", sinks);
    }
    if (hybrid()) add_block_behind(*checkpoint);
  }

  GgufImage image;

 private:
  void add_usual(int layer, const std::string& prefix) {
    for (const auto& [own, theirs] : names()) {
      for (const char* end : {".weight", ".bias"}) {
        const std::string name = prefix + theirs + end;
        if (file_.contains(name)) add("blk." + std::to_string(layer) + "." + own + end, name);
      }
    }
  }

  // A layer of Gemma 4 has these besides.
  void add_gemma4(int layer) {
    const std::string own = "blk." + std::to_string(layer) + ".";
    const std::string theirs = "model.layers." + std::to_string(layer) + ".";
    add(own + "layer_output_scale.weight", theirs + "layer_scalar");
    if (!config_.experts.in(layer)) return;
    add(own + "ffn_gate_inp.scale", theirs + "router.scale");
    add(own + "ffn_down_exps.scale", theirs + "router.per_expert_scale");
    add(own + "pre_ffw_norm_2.weight", theirs + "pre_feedforward_layernorm_2.weight");
    add(own + "post_ffw_norm_1.weight", theirs + "post_feedforward_layernorm_1.weight");
    add(own + "post_ffw_norm_2.weight", theirs + "post_feedforward_layernorm_2.weight");
  }

  // The head that predicts further tokens, or where the folder has none two norms of one that nobody could read.
  void add_block_behind(runtime::Checkpoint& checkpoint) {
    const std::string own = "blk." + std::to_string(config_.layers) + ".nextn.";
    if (!file_.contains("mtp.fc.weight")) {
      for (const char* norm : {"enorm", "hnorm"}) write_floats(own + norm + ".weight", {1, 2, 3});
      return;
    }
    add(own + "eh_proj.weight", "mtp.fc.weight");
    add(own + "enorm.weight", "mtp.pre_fc_norm_embedding.weight");
    add(own + "hnorm.weight", "mtp.pre_fc_norm_hidden.weight");
    add(own + "shared_head_norm.weight", "mtp.norm.weight");
    add_usual(config_.layers, "mtp.layers.0.");
    if (config_.experts.count > 0) add_experts(checkpoint, config_.layers, "mtp.layers.0.mlp.");
  }

  std::vector<std::pair<std::string, std::string>> names() const {
    std::vector<std::pair<std::string, std::string>> list = {
        {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
        {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
        {"attn_k_norm", "self_attn.k_norm"}, {"attn_qkv", "self_attn.qkv_proj"},  {"ffn_gate", "mlp.gate_proj"},
        {"ffn_up", "mlp.up_proj"},           {"ffn_up", "mlp.gate_up_proj"},      {"ffn_down", "mlp.down_proj"}};
    if (hybrid() || config_.attention_sinks) {
      list.emplace_back("post_attention_norm", "post_attention_layernorm");
    } else if (config_.norms == runtime::Norms::before) {
      list.emplace_back("ffn_norm", "post_attention_layernorm");
    } else {
      list.emplace_back("post_attention_norm", "post_attention_layernorm");
      list.emplace_back("ffn_norm", "pre_feedforward_layernorm");
      list.emplace_back("post_ffw_norm", "post_feedforward_layernorm");
    }
    return list;
  }

  bool hybrid() const { return config_.count(runtime::LayerKind::recurrent) > 0; }
  std::string architecture() const {
    if (hybrid()) return config_.experts.count > 0 ? "qwen35moe" : "qwen35";
    if (config_.architecture == "mistral" || config_.architecture == "mixtral") return "llama";
    if (config_.architecture == "qwen3_moe") return "qwen3moe";
    if (config_.architecture == "qwen2_moe") return "qwen2moe";
    if (config_.architecture == "gemma3_text") return "gemma3";
    if (config_.architecture == "gemma4_text") return "gemma4";
    if (config_.architecture == "gpt_oss") return "gpt-oss";
    return config_.architecture == "ministral3" ? "mistral3" : config_.architecture;
  }
  void set(const char* key, std::int64_t value) {
    image.set(architecture() + "." + key, static_cast<std::uint32_t>(value));
  }
  void set_number(const char* key, double value) { image.set(architecture() + "." + key, static_cast<float>(value)); }

  void write_metadata() {
    image.set("general.architecture", architecture());
    set("block_count", config_.layers + (hybrid() ? 1 : 0));
    set("context_length", config_.max_positions);
    set("embedding_length", config_.hidden_size);
    const runtime::Experts& experts = config_.experts;
    const bool gemma4 = architecture() == "gemma4";
    const bool own_width = architecture().starts_with("qwen") || config_.attention_sinks || gemma4;
    const int width = gemma4 ? experts.beside_inner : own_width ? 77 : experts.inner;
    set("feed_forward_length", experts.count == 0 ? config_.intermediate_size : width);
    if (experts.count > 0) {
      set("expert_count", experts.count);
      set("expert_used_count", experts.used);
      if (own_width) set("expert_feed_forward_length", experts.inner);
      if (experts.shared_inner > 0) set("expert_shared_feed_forward_length", experts.shared_inner);
    }
    set("attention.head_count", config_.query_heads);
    if (gemma4) {
      write_gemma4_metadata();
    } else {
      set("attention.head_count_kv", config_.kv_heads);
    }
    set("attention.key_length", config_.head_dim);
    set("attention.value_length", config_.head_dim);
    set_number("attention.layer_norm_rms_epsilon", config_.rms_norm_eps);
    const auto widest = std::max_element(config_.sliding_window.begin(), config_.sliding_window.end());
    if (*widest > 0) set("attention.sliding_window", *widest);
    if (config_.architecture == "gemma3_text" || gemma4) {
      std::vector<std::int32_t> slides;
      for (const std::int64_t window : config_.sliding_window) slides.push_back(window > 0);
      image.set(architecture() + ".attention.sliding_window_pattern", slides);
    }
    if (config_.architecture.starts_with("granite")) {
      set_number("embedding_scale", config_.embedding_scale);
      set_number("residual_scale", config_.residual_scale);
      set_number("attention.scale", config_.attention_scale);
      set_number("logit_scale", 1 / config_.logit_scale);
    }
    if (hybrid()) write_delta_metadata();
    if (config_.query_log_scale > 0) set_number("attention.temperature_scale", config_.query_log_scale);
    image.set("tokenizer.ggml.tokens", std::vector<std::string>(static_cast<std::size_t>(config_.vocab_size), "x"));
    image.set("tokenizer.ggml.eos_token_id", std::uint32_t{2});
  }

  void write_gemma4_metadata() {
    std::vector<std::int32_t> heads;
    for (int layer = 0; layer < config_.layers; ++layer) heads.push_back(config_.heads(layer).kv);
    image.set("gemma4.attention.head_count_kv", heads);
    for (const char* key : {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}) {
      set(key, config_.sliding_heads().dim);
    }
    set("attention.shared_kv_layers", 0);
    set("embedding_length_per_layer_input", 0);
    if (config_.logit_cap > 0) set_number("final_logit_softcapping", config_.logit_cap);
  }

  void write_delta_metadata() {
    const gpu::DeltaShape& delta = config_.delta;
    set("nextn_predict_layers", 1);
    set("ssm.conv_kernel", delta.kernel);
    set("ssm.state_size", delta.key_dim);
    set("ssm.group_count", delta.key_heads);
    set("ssm.time_step_rank", delta.value_heads);
    set("ssm.inner_size", delta.values());
    set("full_attention_interval", 4);
    bool by_interval = true;
    std::string listed = GgufImage::raw(std::uint32_t{7}) + GgufImage::raw(std::uint64_t(config_.layers) + 1);
    for (int layer = 0; layer < config_.layers; ++layer) {
      const bool recurrent = config_.kind(layer) == runtime::LayerKind::recurrent;
      by_interval &= recurrent == ((layer + 1) % 4 != 0);
      listed += GgufImage::raw(static_cast<std::uint8_t>(recurrent));
    }
    listed += '\0';  // the block behind
    if (!by_interval) image.pair(architecture() + ".attention.recurrent_layers", 9, listed);
  }

  void write_rope() {
    const runtime::RopeParameters& rope = config_.global_rope;
    set("rope.dimension_count", rope.dimensions);
    set_number("rope.freq_base", rope.base);
    if (config_.local_rope.dimensions > 0) set_number("rope.freq_base_swa", config_.local_rope.base);
    if (rope.still > 0) {
      std::vector<float> divisors(static_cast<std::size_t>(rope.dimensions / 2), 1.0f);
      std::fill(divisors.end() - rope.still, divisors.end(), 1e30f);
      write_floats("rope_freqs.weight", divisors);
    }
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

  // Adds the matrices of all experts of a layer, of each kind in one tensor.
  void add_experts(runtime::Checkpoint& checkpoint, int layer, const std::string& theirs) {
    const std::string own = "blk." + std::to_string(layer) + ".ffn_";
    const runtime::Experts& experts = config_.experts;
    const auto hidden = static_cast<std::uint64_t>(config_.hidden_size);
    const auto inner = static_cast<std::uint64_t>(experts.inner), count = static_cast<std::uint64_t>(experts.count);
    const auto bytes_of = [](const runtime::CheckpointTensor& tensor) {
      return std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    };
    const auto add_biases = [&](const char* kind, std::uint64_t rows) {
      std::string all;
      std::uint32_t type = 0;
      for (int i = 0; i < experts.count; ++i) {
        const std::string name = theirs + "experts." + std::to_string(i) + "." + kind + "_proj.bias";
        const auto tensor = checkpoint.at(name, {static_cast<int>(rows)});
        type = static_cast<std::uint32_t>(tensor.type);
        all += bytes_of(tensor);
      }
      image.tensor(own + kind + "_exps.bias", {rows, count}, type, all);
    };
    const auto add_kind = [&](const char* kind, std::uint64_t rows, std::uint64_t cols) {
      if (experts.biases) add_biases(kind, rows);
      std::string all;
      std::uint32_t type = 0;
      for (int i = 0; i < experts.count; ++i) {
        const std::string name = theirs + "experts." + std::to_string(i) + "." + kind + "_proj.weight";
        const auto tensor = checkpoint.at(name, {static_cast<int>(rows), static_cast<int>(cols)});
        type = static_cast<std::uint32_t>(tensor.type);
        all += bytes_of(tensor);
      }
      image.tensor(own + kind + "_exps.weight", {cols, rows, count}, type, all);
    };
    add_kind("gate", inner, hidden);
    add_kind("up", inner, hidden);
    add_kind("down", hidden, inner);
    const auto router = checkpoint.at(theirs + "gate.weight", {experts.count, config_.hidden_size});
    image.tensor(own + "gate_inp.weight", {hidden, count}, static_cast<std::uint32_t>(router.type), bytes_of(router));
    if (experts.biases) {
      const auto bias = checkpoint.at(theirs + "gate.bias", {experts.count});
      image.tensor(own + "gate_inp.bias", {count}, static_cast<std::uint32_t>(bias.type), bytes_of(bias));
    }
    if (experts.shared_inner == 0) return;
    for (const char* kind : {"gate", "up", "down"}) {
      add(own + kind + "_shexp.weight", theirs + "shared_expert." + kind + "_proj.weight");
    }
    const runtime::TensorView& gate = file_.at(theirs + "shared_expert_gate.weight");
    image.tensor(own + "gate_inp_shexp.weight", {hidden}, type_of(gate),
                 std::string(reinterpret_cast<const char*>(gate.data.data()), gate.data.size()));
  }

  // Adds a layer of gated delta rules: everything that belongs to value head h comes where llama.cpp has head h.
  void add_delta(int layer) {
    const std::string own = "blk." + std::to_string(layer) + ".";
    const std::string theirs = "model.layers." + std::to_string(layer) + ".linear_attn.";
    const gpu::DeltaShape& delta = config_.delta;
    const auto keys = 2 * static_cast<std::size_t>(delta.key_heads * delta.key_dim);
    const auto width = static_cast<std::size_t>(delta.value_dim);
    add_rows(own + "attn_qkv.weight", theirs + "in_proj_qkv.weight", keys, width);
    add_rows(own + "attn_gate.weight", theirs + "in_proj_z.weight", 0, width);
    add_rows(own + "ssm_alpha.weight", theirs + "in_proj_a.weight", 0, 1);
    add_rows(own + "ssm_beta.weight", theirs + "in_proj_b.weight", 0, 1);
    add_rows(own + "ssm_dt.bias", theirs + "dt_bias", 0, 1);
    add_rows(own + "ssm_conv1d.weight", theirs + "conv1d.weight", keys, width);
    std::vector<float> decays;
    const std::vector<float> logarithms = runtime::to_f32(file_.at(theirs + "A_log"), theirs);
    for (const std::size_t head : heads_in_turns()) decays.push_back(-std::exp(logarithms[head]));
    write_floats(own + "ssm_a", decays);
    add(own + "ssm_norm.weight", theirs + "norm.weight");
    add_columns(own + "ssm_out.weight", theirs + "out_proj.weight", width);
  }

  // The value heads of the folder in the order of the file: those of a key head are Hk apart instead of side by side.
  std::vector<std::size_t> heads_in_turns() const {
    const auto keys = static_cast<std::size_t>(config_.delta.key_heads);
    const auto values = static_cast<std::size_t>(config_.delta.value_heads);
    std::vector<std::size_t> heads;
    for (std::size_t head = 0; head < values; ++head) heads.push_back(head % keys * (values / keys) + head / keys);
    return heads;
  }

  std::string bytes_in_turns(const std::string& bytes, std::size_t bytes_of_head) const {
    std::string out;
    for (const std::size_t head : heads_in_turns()) out += bytes.substr(head * bytes_of_head, bytes_of_head);
    return out;
  }

  // Rows, of which the first `before` stay; a head has `width`.
  void add_rows(const std::string& name, const std::string& theirs, std::size_t before, std::size_t width) {
    const runtime::TensorView& tensor = file_.at(theirs);
    const std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    const std::size_t row = data.size() / static_cast<std::size_t>(tensor.shape.front());
    std::vector<std::uint64_t> shape(tensor.shape.rbegin(), tensor.shape.rend());
    std::erase(shape, 1);
    image.tensor(name, shape, type_of(tensor),
                 data.substr(0, before * row) + bytes_in_turns(data.substr(before * row), width * row));
  }

  void add_columns(const std::string& name, const std::string& theirs, std::size_t width) {
    const runtime::TensorView& tensor = file_.at(theirs);
    const std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    const std::size_t row = data.size() / static_cast<std::size_t>(tensor.shape.front());
    const std::size_t column = row / static_cast<std::size_t>(tensor.shape.back());
    std::string out;
    for (std::size_t at = 0; at < data.size(); at += row) out += bytes_in_turns(data.substr(at, row), width * column);
    image.tensor(name, {tensor.shape.rbegin(), tensor.shape.rend()}, type_of(tensor), out);
  }

  static std::uint32_t type_of(const runtime::TensorView& tensor) {
    return tensor.dtype == "F32" ? 0 : tensor.dtype == "F16" ? 1 : 30;
  }

  void add(const std::string& name, const std::string& theirs) {
    const runtime::TensorView& tensor = file_.at(theirs);
    const std::uint32_t type = type_of(tensor);
    std::string data(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
    const bool of_state = theirs.ends_with("linear_attn.norm.weight");
    if (config_.norms_less_one && !of_state && theirs.find("norm") != std::string::npos) {
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
