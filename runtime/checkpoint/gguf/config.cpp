#include "runtime/checkpoint/gguf/config.h"

#include <algorithm>
#include <cmath>

#include "offload/error.h"
#include "runtime/checkpoint/gguf/config_parts.h"
#include "runtime/checkpoint/gguf/tokenizer.h"

namespace hayloft::runtime::gguf {
namespace {

constexpr std::int64_t most_gguf_experts_width = 1 << 14;

constexpr GgufArchitecture gguf_architectures[] = {
    {.name = "llama", .pairs = true},
    {.name = "mistral3", .pairs = true},
    {.name = "qwen2"},
    {.name = "qwen3", .qk_norm = true},
    {.name = "phi3"},
    {.name = "gemma3", .qk_norm = true, .norms = Norms::both, .window_pattern = 6},
    {.name = "granite", .pairs = true},
    {.name = "olmo2", .qk_norm = true, .norms = Norms::after, .window_pattern = 4},
    {.name = "smollm3", .pairs = true, .rope_free_interval = 4},
    {.name = "qwen35", .qk_norm = true},
    {.name = "qwen3moe", .qk_norm = true},
    {.name = "qwen35moe", .qk_norm = true},
    {.name = "gpt-oss", .window_pattern = 2},
};

// Refuses a file of another architecture.
const GgufArchitecture& architecture_of(const Metadata& metadata) {
  const std::string_view name = metadata.text("general.architecture");
  const GgufArchitecture* const found = find_gguf_architecture(name);
  if (found) return *found;
  std::string names;
  for (const GgufArchitecture& each : gguf_architectures) names += (names.empty() ? "" : ", ") + std::string(each.name);
  metadata.refuse("general.architecture", "one of " + names + " for hayloft to run it");
}

class Reader {
 public:
  Reader(const Metadata& metadata, const Tensors& tensors)
      : metadata_(metadata), tensors_(tensors), architecture_(architecture_of(metadata)), keys_(metadata) {}

  ModelConfig read() {
    ModelConfig config;
    config.architecture = architecture_.name;
    read_shape(config);
    config.rms_norm_eps = static_cast<float>(keys_.positive("attention.layer_norm_rms_epsilon"));
    config.tied_embeddings = !find("output.weight");
    config.qkv_bias = find("blk.0.attn_q.bias");
    config.output_bias = find("blk.0.attn_output.bias");
    config.mlp_bias = find("blk.0.ffn_gate.bias");
    config.qk_norm = architecture_.qk_norm;
    config.norms = architecture_.norms;
    read_parts(config);
    read_gguf_layers(keys_, config);
    read_gguf_rope(keys_, tensors_, config);
    look_at_unread_keys(keys_, config);
    limit_to_one_chunk(config);
    set_rope(config);
    config.eos_tokens = end_tokens(metadata_);
    for (std::string& note : tokenizer_notes(metadata_)) config.notes.push_back(std::move(note));
    return config;
  }

 private:
  int integer(const char* name, std::int64_t most) const { return static_cast<int>(keys_.integer(name, 1, most)); }
  // The same in every layer.
  int of_layers(const ModelConfig& config, const char* name, std::int64_t most) const {
    return static_cast<int>(keys_.same_in_layers(name, config.layers, 1, most));
  }

  // Reads those of models that are planned and not run.
  void read_experts(ModelConfig& config) const {
    const auto size = [&](const char* name, std::int64_t absent) {
      return static_cast<int>(keys_.integer_or(name, absent, absent, most_gguf_experts_width));
    };
    const int count = size("expert_count", 0);
    if (!keys_.is("qwen3moe") && !keys_.is("qwen35moe") && !keys_.is("gpt-oss")) {
      if (count > 0) {
        keys_.refuse("expert_count", fmt::format("0: {} is no mixture of experts here", architecture_.name));
      }
      config.intermediate_size = of_layers(config, "feed_forward_length", most_channels);
      return;
    }
    keys_.find("feed_forward_length");  // of layers that have no experts, and there are none
    config.experts = {std::max(count, 1), of_layers(config, "expert_used_count", most_gguf_experts_width),
                      of_layers(config, "expert_feed_forward_length", most_gguf_experts_width),
                      size("expert_shared_feed_forward_length", 0)};
    if (config.experts.used > config.experts.count) {
      keys_.refuse("expert_used_count", fmt::format("at most expert_count, {}", config.experts.count));
    }
    config.intermediate_size = config.experts.used * config.experts.inner + config.experts.shared_inner;
  }

  void read_shape(ModelConfig& config) const {
    keys_.find("nextn_predict_layers");
    config.layers = integer("block_count", most_blocks) - blocks_behind(metadata_);
    config.hidden_size = integer("embedding_length", most_channels);
    read_experts(config);
    config.query_heads = of_layers(config, "attention.head_count", most_heads_of_layer);
    config.kv_heads = keys_.contains("attention.head_count_kv")
                          ? of_layers(config, "attention.head_count_kv", most_heads_of_layer)
                          : config.query_heads;
    if (config.query_heads % config.kv_heads != 0) {
      fail("{}: attention.head_count {} is not a multiple of attention.head_count_kv {}", metadata_.file(),
           config.query_heads, config.kv_heads);
    }

    if (!keys_.contains("attention.key_length") && config.hidden_size % config.query_heads != 0) {
      fail("{}: embedding_length {} is not a multiple of attention.head_count {}, and there is no attention.key_length",
           metadata_.file(), config.hidden_size, config.query_heads);
    }
    config.head_dim = static_cast<int>(
        keys_.integer_or("attention.key_length", config.hidden_size / config.query_heads, 1, most_channels));
    if (config.head_dim % 8 != 0 || config.head_dim > 256) {
      fail("{}: heads of {} components are not supported; it must be a multiple of 8 up to 256", metadata_.file(),
           config.head_dim);
    }
    if (keys_.integer_or("attention.value_length", config.head_dim, 1, most_channels) != config.head_dim) {
      keys_.refuse("attention.value_length", fmt::format("that of the keys, {}", config.head_dim));
    }
    config.max_positions = keys_.integer_or("context_length", 0, 1, most_positions);

    const Tensor* embedding = find("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2) fail("{}: has no matrix token_embd.weight", metadata_.file());
    if (embedding->shape[0] > most_channels * 4) fail("{}: a vocabulary of {}", metadata_.file(), embedding->shape[0]);
    config.vocab_size = static_cast<int>(embedding->shape[0]);
  }

  void read_parts(ModelConfig& config) const {
    if (keys_.is("phi3")) config.fused = true;
    if (keys_.is("olmo2")) config.qk_norm_whole = true;
    if (keys_.is("qwen35") || keys_.is("qwen35moe")) read_delta(config);
    if (keys_.is("gemma3")) {
      config.activation = Activation::gelu_tanh;
      config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
      // The queries' scale of the 27B, which has 62 layers, is that of hidden_size / heads; a file does not say so.
      const int width = config.layers == 62 ? config.hidden_size / config.query_heads : config.head_dim;
      config.attention_scale = 1 / std::sqrt(static_cast<float>(width));
      for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
        if (keys_.contains(cap) && !keys_.is_zero(cap)) keys_.refuse(cap, "absent: caps are not supported");
      }
    }
    if (keys_.is("granite")) {
      config.embedding_scale = static_cast<float>(keys_.nonzero_or("embedding_scale", 1));
      config.residual_scale = static_cast<float>(keys_.nonzero_or("residual_scale", 1));
      config.attention_scale = static_cast<float>(keys_.nonzero_or("attention.scale", 0));
      config.logit_scale = static_cast<float>(1 / keys_.positive_or("logit_scale", 1));
    }
  }

  // Layers of gated delta rules, which have the names of a state space model's.
  void read_delta(ModelConfig& config) const {
    config.attention_gate = true;
    gpu::DeltaShape& delta = config.delta;
    delta.heads_in_turns = true;  // as ggml repeats keys
    delta.kernel = integer("ssm.conv_kernel", gpu::DeltaShape::most_kernel);
    delta.key_heads = integer("ssm.group_count", most_heads_of_layer);
    delta.key_dim = integer("ssm.state_size", gpu::DeltaShape::most_key_dim);
    delta.value_heads = integer("ssm.time_step_rank", most_heads_of_layer);
    const int values = integer("ssm.inner_size", most_channels);
    if (delta.value_heads % delta.key_heads != 0) {
      keys_.refuse("ssm.time_step_rank", fmt::format("a multiple of ssm.group_count, {}", delta.key_heads));
    }
    if (values % delta.value_heads != 0) {
      keys_.refuse("ssm.inner_size", fmt::format("a multiple of ssm.time_step_rank, {}", delta.value_heads));
    }
    delta.value_dim = values / delta.value_heads;
  }

  const Tensor* find(std::string_view name) const {
    const auto tensor = tensors_.find(name);
    return tensor == tensors_.end() ? nullptr : &tensor->second;
  }

  const Metadata& metadata_;
  const Tensors& tensors_;
  const GgufArchitecture& architecture_;
  Keys keys_;
};

}  // namespace

const GgufArchitecture* find_gguf_architecture(std::string_view name) {
  for (const GgufArchitecture& architecture : gguf_architectures) {
    if (name == architecture.name) return &architecture;
  }
  return nullptr;
}

ModelConfig read_config(const Metadata& metadata, const Tensors& tensors) {
  return Reader(metadata, tensors).read();
}

ModelConfig read_config(const File& file) {
  return read_config(file.metadata(), file.tensors());
}

int blocks_behind(const Metadata& metadata) {
  const std::string prefix = std::string(metadata.text("general.architecture")) + ".";
  const std::int64_t blocks = metadata.integer(prefix + "block_count", 1, most_blocks);
  return static_cast<int>(metadata.integer_or(prefix + "nextn_predict_layers", 0, 0, blocks - 1));
}

bool rows_in_pairs(const ModelConfig& config) {
  const GgufArchitecture* architecture = find_gguf_architecture(config.architecture);
  return architecture && architecture->pairs;
}

}  // namespace hayloft::runtime::gguf
