#include "runtime/checkpoint/gguf/config.h"

#include <algorithm>
#include <cmath>

#include "offload/error.h"
#include "runtime/checkpoint/gguf/config_parts.h"
#include "runtime/checkpoint/gguf/tokenizer.h"

namespace hayloft::runtime::gguf {
namespace {

constexpr std::int64_t most_gguf_experts_width = 1 << 14;
constexpr std::int64_t most_gguf_expert_rows = (std::int64_t{1} << 31) - 1;

constexpr const char* own_width = "expert_feed_forward_length";
constexpr const char* shared_width = "feed_forward_length";  // that of an MLP elsewhere

constexpr GgufArchitecture gguf_architectures[] = {
    {.name = "llama", .pairs = true, .expert_width = shared_width, .experts_everywhere = false},
    {.name = "mistral3", .pairs = true},
    {.name = "qwen2"},
    {.name = "qwen3", .qk_norm = true},
    {.name = "phi3"},
    {.name = "gemma3", .qk_norm = true, .norms = Norms::both, .window_pattern = 6},
    {.name = "gemma4", .qk_norm = true, .norms = Norms::both, .expert_width = own_width, .experts_everywhere = false},
    {.name = "granite", .pairs = true},
    {.name = "olmo2", .qk_norm = true, .norms = Norms::after, .window_pattern = 4},
    {.name = "smollm3", .pairs = true, .rope_free_interval = 4},
    {.name = "qwen35", .qk_norm = true},
    {.name = "qwen2moe", .expert_width = own_width, .widths_follow = true, .share_of_chosen = false},
    {.name = "qwen3moe", .qk_norm = true, .expert_width = own_width, .widths_follow = true},
    {.name = "qwen35moe", .qk_norm = true, .expert_width = own_width, .widths_follow = true},
    {.name = "olmoe", .qk_norm = true, .expert_width = shared_width, .share_of_chosen = false},
    {.name = "granitemoe", .pairs = true, .expert_width = shared_width},
    {.name = "gpt-oss", .expert_width = own_width, .window_pattern = 2},
};

// Refuses what is no model, or one of another architecture.
const GgufArchitecture& architecture_of(const Metadata& metadata) {
  for (const char* other : {"adapter", "mmproj", "imatrix"}) {
    if (metadata.text_or("general.type", "") == other) metadata.refuse("general.type", "model: name the model's file");
  }
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
    if (keys_.is("gemma4")) read_gguf_heads_by_kind(keys_, tensors_, config);
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

  // Reads how wide the MLPs are, and of what experts they are made.
  void read_feed_forward(ModelConfig& config) const {
    const auto size = [&](const char* name, std::int64_t least) {
      return static_cast<int>(keys_.integer_or(name, 0, least, most_gguf_experts_width));
    };
    const GgufArchitecture& has = architecture_;
    const bool always = has.expert_width && has.experts_everywhere;
    Experts& experts = config.experts;
    experts.count = size("expert_count", always ? 1 : 0);
    if (experts.count == 0 && always) keys_.integer("expert_count", 1, most_gguf_experts_width);
    if (experts.count > 0 && !has.expert_width) {
      keys_.refuse("expert_count", fmt::format("0: {} is no mixture of experts here", has.name));
    }
    if (experts.count == 0) {
      config.intermediate_size = of_layers(config, "feed_forward_length", most_channels);
      return;
    }
    if (keys_.is("gemma4")) experts.beside_inner = of_layers(config, "feed_forward_length", most_channels);
    keys_.find("feed_forward_length");  // of layers that have no experts, and there are none
    experts.used = of_layers(config, "expert_used_count", most_gguf_experts_width);
    experts.share_of_chosen = has.share_of_chosen;
    if (experts.used > experts.count) {
      keys_.refuse("expert_used_count", fmt::format("at most expert_count, {}", experts.count));
    }
    experts.inner = expert_width(config);
    if (keys_.is("qwen35moe") || keys_.is("qwen2moe")) experts.shared_inner = shared_expert_width(config);
    if (std::int64_t{experts.count} * std::max(2 * experts.inner, config.hidden_size) > most_gguf_expert_rows) {
      keys_.refuse("expert_count", "fewer, for experts of that size");
    }
    config.intermediate_size = experts.used * experts.inner + experts.shared_inner + experts.beside_inner;
    refuse_other_routers(config);
  }

  // Takes the experts of a token to be together as wide as an MLP where no key says how wide one is.
  int expert_width(const ModelConfig& config) const {
    const char* const name = architecture_.expert_width;
    const bool said = keys_.contains(name) && !keys_.is_zero(name);
    if (said || !architecture_.widths_follow) return of_layers(config, name, most_gguf_experts_width);
    const int width = of_layers(config, shared_width, most_channels) / config.experts.used;
    if (width < 1 || width > most_gguf_experts_width) {
      keys_.refuse(shared_width, fmt::format("the width of expert_used_count experts of up to {}, for there is no {}",
                                             most_gguf_experts_width, name));
    }
    return width;
  }

  // Takes the expert of all tokens, where the file has one and no key says how wide it is, to be as wide as an MLP.
  int shared_expert_width(const ModelConfig& config) const {
    constexpr const char* name = "expert_shared_feed_forward_length";
    const int said = static_cast<int>(keys_.integer_or(name, 0, 0, most_gguf_experts_width));
    if (said > 0 || !find("blk.0.ffn_gate_shexp.weight")) return said;
    return of_layers(config, shared_width, most_gguf_experts_width);
  }

  // Keys by which other architectures choose or weigh their experts otherwise.
  void refuse_other_routers(const ModelConfig& config) const {
    const auto refuse_unless = [&](const char* key, double neutral, const char* expected) {
      const double value = keys_.nonzero_or(key, neutral);
      if (value != neutral)
        keys_.refuse(key, fmt::format("{} or absent for the architecture {}", expected, keys_.architecture()));
    };
    refuse_unless("expert_weights_scale", 1, "1");
    refuse_unless("expert_gating_func", 1, "1 (softmax)");
    refuse_unless("expert_group_count", 1, "1");
    refuse_unless("leading_dense_block_count", 0, "0");
    if (config.experts.shared_inner == 0) refuse_unless("expert_shared_feed_forward_length", 0, "0");
    if (keys_.boolean_or("expert_weights_norm", config.experts.share_of_chosen) != config.experts.share_of_chosen) {
      keys_.refuse("expert_weights_norm", fmt::format("{} or absent for the architecture {}",
                                                      config.experts.share_of_chosen, keys_.architecture()));
    }
  }

  // Refuses a block behind the language model that has what a layer has and nothing of a head for further tokens:
  // without it the model would be another.
  void refuse_layers_behind(const ModelConfig& config) const {
    for (int block = config.layers; block < config.layers + config.draft_layers; ++block) {
      const std::string prefix = fmt::format("blk.{}.", block);
      const auto holds = [&](const std::string& start) {
        const auto at = tensors_.lower_bound(start);
        return at != tensors_.end() && at->first.starts_with(start);
      };
      if (!holds(prefix) || holds(prefix + "nextn.")) continue;
      keys_.refuse(
          "nextn_predict_layers",
          fmt::format("0, or less: block {} is a layer of the model, without a tensor {}nextn.*", block, prefix));
    }
  }

  void read_shape(ModelConfig& config) const {
    keys_.find("nextn_predict_layers");
    config.draft_layers = blocks_behind(metadata_);
    config.layers = integer("block_count", most_blocks) - config.draft_layers;
    refuse_layers_behind(config);
    config.hidden_size = integer("embedding_length", most_channels);
    read_feed_forward(config);
    config.query_heads = of_layers(config, "attention.head_count", most_heads_of_layer);
    config.max_positions = keys_.integer_or("context_length", 0, 1, most_positions);
    read_vocabulary(config);
    if (!keys_.is("gemma4")) read_heads(config);  // whose layers are to be known before
  }

  void read_vocabulary(ModelConfig& config) const {
    const Tensor* embedding = find("token_embd.weight");
    if (!embedding || embedding->shape.size() != 2) fail("{}: has no matrix token_embd.weight", metadata_.file());
    if (embedding->shape[0] > most_channels * 4) fail("{}: a vocabulary of {}", metadata_.file(), embedding->shape[0]);
    config.vocab_size = static_cast<int>(embedding->shape[0]);
  }

  void read_heads(ModelConfig& config) const {
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
    if (config.head_dim % 8 != 0 || config.head_dim > offload::most_head_dim) {
      fail("{}: heads of {} components are not supported; it must be a multiple of 8 up to {}", metadata_.file(),
           config.head_dim, offload::most_head_dim);
    }
    if (keys_.integer_or("attention.value_length", config.head_dim, 1, most_channels) != config.head_dim) {
      keys_.refuse("attention.value_length", fmt::format("that of the keys, {}", config.head_dim));
    }
  }

  void read_parts(ModelConfig& config) const {
    if (keys_.is("phi3")) config.fused = true;
    if (keys_.is("olmo2") || keys_.is("olmoe")) config.qk_norm_whole = true;
    if (keys_.is("qwen35") || keys_.is("qwen35moe")) read_delta(config);
    if (keys_.is("gpt-oss")) {
      config.attention_sinks = config.experts.biases = true;
      config.activation = Activation::clamped;
      config.activation_limit = 7;  // as no key says
    }
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
    if (keys_.is("gemma4")) read_gemma4(config);
    if (keys_.is("granite") || keys_.is("granitemoe")) {
      config.embedding_scale = static_cast<float>(keys_.nonzero_or("embedding_scale", 1));
      config.residual_scale = static_cast<float>(keys_.nonzero_or("residual_scale", 1));
      config.attention_scale = static_cast<float>(keys_.nonzero_or("attention.scale", 0));
      config.logit_scale = static_cast<float>(1 / keys_.positive("logit_scale"));
    }
  }

  void read_gemma4(ModelConfig& config) const {
    config.activation = Activation::gelu_tanh;
    config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
    config.attention_scale = 1;
    config.value_norm = true;
    config.layer_scales = find("blk.0.layer_output_scale.weight");
    config.logit_cap = static_cast<float>(keys_.nonzero_or("final_logit_softcapping", 0));
    const auto refuse_unless_zero = [&](const char* key, const char* what) {
      if (keys_.contains(key) && !keys_.is_zero(key)) keys_.refuse(key, fmt::format("0 or absent: {}", what));
    };
    refuse_unless_zero("attn_logit_softcapping", "caps of attention are not supported");
    refuse_unless_zero("embedding_length_per_layer_input",
                       "embeddings of each layer, as the models E2B and E4B have them, are not supported");
    refuse_unless_zero("attention.shared_kv_layers",
                       "layers that share keys and values, as the models E2B and E4B have them, are not supported");
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
