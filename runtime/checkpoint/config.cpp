#include "runtime/checkpoint/config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {

namespace {

constexpr std::int64_t most_experts_width = 1 << 14;  // so that what all of them make stays within an int
constexpr std::int64_t most_token_id = (std::int64_t{1} << 31) - 1;

// What an architecture takes for granted when its config.json does not say: the defaults of the Hugging Face
// configuration class of that name.
struct Architecture {
  const char* name;
  int kv_heads;  // 0: as many as query heads
  int head_dim;  // 0: hidden_size / num_attention_heads
  std::int64_t max_positions;
  double rope_theta;
  bool tied_embeddings;
  std::int32_t eos_token;  // -1: none
  bool reads_attention_bias;
  bool reads_mlp_bias;
  double rms_norm_eps = 1e-6;
};

constexpr Architecture architectures[] = {
    {"llama", 0, 0, 2048, 1e4, false, 2, true, true},
    {"mistral", 8, 0, 131072, 1e4, false, 2, false, false},
    {"ministral", 8, 0, 131072, 1e4, false, 2, false, false},
    {"ministral3", 8, 128, 262144, 1e6, false, 2, false, false, 1e-5},
    {"qwen2", 32, 0, 32768, 1e4, false, -1, false, false},
    {"qwen3", 32, 128, 32768, 1e4, false, -1, true, false},
    {"qwen3_5_text", 4, 256, 32768, 1e4, false, -1, true, false},
    {"qwen3_moe", 4, 0, 32768, 1e4, false, -1, true, false},
    {"qwen3_5_moe_text", 2, 256, 32768, 1e4, false, -1, true, false},
    {"gpt_oss", 8, 64, 131072, 150000, false, -1, true, false, 1e-5},
    {"smollm3", 4, 0, 32768, 2e6, true, 128001, true, true},
    {"gemma3_text", 4, 256, 131072, 1e6, true, 1, true, false},
    {"phi3", 0, 0, 4096, 1e4, false, 32000, false, false, 1e-5},
    {"granite", 0, 0, 2048, 1e4, false, 2, true, true},
    {"olmo2", 0, 0, 2048, 1e4, false, 50279, true, false, 1e-5},
};

const Architecture& find_architecture(const JsonFields& fields) {
  const std::string name = fields.text("model_type");
  std::string names;
  for (const Architecture& architecture : architectures) {
    if (name == architecture.name) return architecture;
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  if (name.find("moe") != std::string::npos || name == "mixtral" || name == "qwen3_next") {
    fail("{}: model_type {} is a mixture of experts, which hayloft does not run", fields.where(), name);
  }
  fields.refuse("model_type", *fields.find("model_type"), "one of " + names + " for hayloft to run it");
}

bool is_hybrid(const ModelConfig& config) {
  return config.architecture == "qwen3_5_text" || config.architecture == "qwen3_5_moe_text";
}

// qwen3_moe, qwen3_5_moe and gpt_oss, with the defaults of their configuration classes.
void read_experts(const JsonFields& fields, ModelConfig& config) {
  const auto size = [&](const char* name, std::int64_t absent, std::int64_t least = 1) {
    return static_cast<int>(fields.integer_or(name, absent, least, most_experts_width));
  };
  Experts& experts = config.experts;
  if (config.architecture == "gpt_oss") {
    experts = {size("num_local_experts", 128), size("num_experts_per_tok", 4), size("intermediate_size", 2880), 0};
  } else {
    const bool hybrid = is_hybrid(config);
    experts = {size("num_experts", hybrid ? 256 : 128), size("num_experts_per_tok", 8),
               size("moe_intermediate_size", hybrid ? 512 : 768),
               hybrid ? size("shared_expert_intermediate_size", 512, 0) : 0};
  }
  if (experts.used > experts.count) {
    fail("{}: num_experts_per_tok {} is more than the {} experts there are", fields.where(), experts.used,
         experts.count);
  }
  config.intermediate_size = experts.used * experts.inner + experts.shared_inner;
}

void read_shape(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  config.vocab_size = static_cast<int>(fields.integer("vocab_size", 1, most_width * 4));
  config.hidden_size = static_cast<int>(fields.integer("hidden_size", 1, most_width));
  const bool experts = config.architecture.find("moe") != std::string::npos || config.architecture == "gpt_oss";
  if (experts) {
    read_experts(fields, config);
  } else {
    config.intermediate_size = static_cast<int>(fields.integer("intermediate_size", 1, most_width));
  }
  config.layers = static_cast<int>(fields.integer("num_hidden_layers", 1, most_layers));
  config.query_heads = static_cast<int>(fields.integer("num_attention_heads", 1, most_heads));

  const bool one_to_one = architecture.kv_heads == 0 || fields.is_null("num_key_value_heads");
  config.kv_heads = static_cast<int>(
      fields.integer_or("num_key_value_heads", one_to_one ? config.query_heads : architecture.kv_heads, 1, most_heads));
  if (config.query_heads % config.kv_heads != 0) {
    fail("{}: num_attention_heads {} is not a multiple of num_key_value_heads {}", fields.where(), config.query_heads,
         config.kv_heads);
  }

  if (!fields.find("head_dim") && architecture.head_dim == 0 && config.hidden_size % config.query_heads != 0) {
    fail("{}: hidden_size {} is not a multiple of num_attention_heads {}, and there is no head_dim", fields.where(),
         config.hidden_size, config.query_heads);
  }
  const int derived = architecture.head_dim ? architecture.head_dim : config.hidden_size / config.query_heads;
  config.head_dim = static_cast<int>(fields.integer_or("head_dim", derived, 1, most_width));
  if (config.head_dim % 8 != 0 || config.head_dim > 256) {
    fail("{}: head_dim {} is not supported; it must be a multiple of 8 up to 256", fields.where(), config.head_dim);
  }
  config.max_positions = fields.integer_or("max_position_embeddings", architecture.max_positions, 1, most_tokens);
}

void read_activation(const JsonFields& fields, ModelConfig& config) {
  if (config.architecture == "gemma3_text") {
    config.activation = Activation::gelu_tanh;
    const std::string name = fields.text_or("hidden_activation", "gelu_pytorch_tanh");
    if (name != "gelu_pytorch_tanh") fields.refuse("hidden_activation", name, "gelu_pytorch_tanh");
    return;
  }
  const std::string name = fields.text_or("hidden_act", "silu");
  if (name != "silu" && name != "swish") fields.refuse("hidden_act", name, "silu (swish)");
}

void read_gemma3(const JsonFields& fields, ModelConfig& config) {
  config.qk_norm = true;
  config.norms = Norms::both;
  config.norms_less_one = true;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  config.attention_scale = 1 / std::sqrt(static_cast<float>(fields.positive_or("query_pre_attn_scalar", 256)));
  for (const char* name : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (const nlohmann::json* cap = fields.find(name)) fields.refuse(name, *cap, "null: caps are not supported");
  }
  if (fields.boolean_or("use_bidirectional_attention", false)) {
    fields.refuse("use_bidirectional_attention", true, "false for a model that writes text");
  }
}

void read_granite(const JsonFields& fields, ModelConfig& config) {
  config.embedding_scale = static_cast<float>(fields.positive_or("embedding_multiplier", 1));
  config.residual_scale = static_cast<float>(fields.positive_or("residual_multiplier", 1));
  config.attention_scale = static_cast<float>(fields.positive_or("attention_multiplier", 1));
  config.logit_scale = static_cast<float>(1 / fields.positive_or("logits_scaling", 1));
}

void read_qwen3_5(const JsonFields& fields, ModelConfig& config) {
  config.qk_norm = true;
  config.norms_less_one = true;
  config.attention_gate = true;
  if (config.qkv_bias) fields.refuse("attention_bias", true, "false for a model whose attention has gates");
  const auto size = [&](const char* name, std::int64_t absent, std::int64_t most) {
    return static_cast<int>(fields.integer_or(name, absent, 1, most));
  };
  gpu::DeltaShape& delta = config.delta;
  delta.key_heads = size("linear_num_key_heads", 16, most_heads);
  delta.value_heads = size("linear_num_value_heads", 32, most_heads);
  delta.key_dim = size("linear_key_head_dim", 128, gpu::DeltaShape::most_key_dim);
  delta.value_dim = size("linear_value_head_dim", 128, most_width);
  delta.kernel = size("linear_conv_kernel_dim", 4, gpu::DeltaShape::most_kernel);
  if (delta.value_heads % delta.key_heads != 0) {
    fail("{}: linear_num_value_heads {} is not a multiple of linear_num_key_heads {}", fields.where(),
         delta.value_heads, delta.key_heads);
  }
  if (delta.channels() > most_width) {
    fail("{}: linear_num_key_heads, linear_num_value_heads and the sizes of their heads make {} channels, more than {}",
         fields.where(), delta.channels(), most_width);
  }
}

// Where an architecture departs from Llama's.
void read_parts(const JsonFields& fields, ModelConfig& config) {
  if (config.architecture == "qwen3") config.qk_norm = true;
  if (config.architecture == "qwen3_moe") config.qk_norm = true;
  if (is_hybrid(config)) read_qwen3_5(fields, config);
  if (config.architecture == "gemma3_text") read_gemma3(fields, config);
  if (config.architecture == "granite") read_granite(fields, config);
  if (config.architecture == "phi3") config.fused = true;
  if (config.architecture == "olmo2") {
    config.qk_norm = config.qk_norm_whole = true;
    config.norms = Norms::after;
  }
}

// eos_token_id: a number, a list of numbers, or null.
std::vector<std::int32_t> read_eos(const JsonFields& fields) {
  std::vector<std::int32_t> tokens;
  const nlohmann::json* value = fields.find("eos_token_id");
  if (!value) return tokens;
  const auto add = [&](const nlohmann::json& entry) {
    std::int64_t token = 0;
    if (!read_integer(entry, 0, most_token_id, token)) {
      fields.refuse("eos_token_id", entry, "a token id or a list of them");
    }
    tokens.push_back(static_cast<std::int32_t>(token));
  };
  if (value->is_array()) {
    for (const nlohmann::json& entry : *value) add(entry);
  } else {
    add(*value);
  }
  return tokens;
}

void override_rope(const RopeOverrides& overrides, ModelConfig& config) {
  RopeParameters& rope = config.global_rope;
  if (overrides.base > 0) rope.base = overrides.base;
  if (overrides.scaling) {
    if (*overrides.scaling != rope.scaling) {  // what the model itself says of another way does not apply
      rope = {.base = rope.base, .dimensions = rope.dimensions, .original_positions = config.max_positions};
      rope.scaling = *overrides.scaling;
    }
  } else if (overrides.factor > 0 && rope.scaling == RopeScaling::none) {
    rope.scaling = RopeScaling::linear;
  }
  if (overrides.original_positions > 0) rope.original_positions = overrides.original_positions;
  if (overrides.factor > 0) rope.factor = overrides.factor;
  if (rope.scaling == RopeScaling::yarn && rope.original_positions < 1) {
    fail("--rope-scaling yarn: say by --yarn-orig-ctx how many positions the model was trained on");
  }
  config.rope_overrides = overrides.text();
}

void read_eos_tokens(const std::filesystem::path& directory, const JsonFields& fields, std::int32_t by_default,
                     ModelConfig& config) {
  config.eos_tokens = read_eos(fields);
  if (config.eos_tokens.empty() && by_default >= 0 && !fields.find("eos_token_id") && !fields.is_null("eos_token_id")) {
    config.eos_tokens = {by_default};
  }
  const std::filesystem::path generation = directory / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(generation, error)) return;
  const nlohmann::json json = read_json_file(generation);
  std::vector<std::int32_t> tokens = read_eos(JsonFields(json, generation.string()));
  if (!tokens.empty()) config.eos_tokens = std::move(tokens);
}

}  // namespace

LayerKind ModelConfig::kind(int layer) const {
  const auto at = static_cast<std::size_t>(layer);
  if (!recurrent.empty() && recurrent[at]) return LayerKind::recurrent;
  return sliding_window[at] > 0 ? LayerKind::sliding : LayerKind::global;
}

int ModelConfig::count(LayerKind wanted) const {
  int found = 0;
  for (int layer = 0; layer < layers; ++layer) found += kind(layer) == wanted ? 1 : 0;
  return found;
}

void set_rope(ModelConfig& config, const RopeOverrides& overrides, std::int64_t positions) {
  RopeParameters& rope = config.global_rope;
  if (overrides.any()) override_rope(overrides, config);
  if (rope.scaling == RopeScaling::yarn || rope.scaling == RopeScaling::dynamic) {
    const double served = std::round(rope.factor * static_cast<double>(rope.original_positions));
    config.max_positions = std::max(config.max_positions, static_cast<std::int64_t>(served));
  } else if (rope.scaling == RopeScaling::linear) {
    const double served = rope.factor * static_cast<double>(rope.original_positions);
    config.max_positions = static_cast<std::int64_t>(served);
  }
  const std::int64_t length = positions > 0 ? positions : config.max_positions;
  config.global_table = rope_table(rope, length);
  config.local_table = config.local_rope.dimensions > 0 ? rope_table(config.local_rope, length) : RopeTable{};
}

void limit_to_one_chunk(ModelConfig& config, std::int64_t chunk) {
  constexpr std::int64_t usual_chunk = 262144;  // of Qwen2.5-1M and the 1M configurations of Qwen3-2507
  const bool by_length = (config.architecture == "qwen2" || config.architecture == "qwen3") &&
                         config.global_rope.scaling == RopeScaling::none && config.max_positions > usual_chunk;
  if (chunk == 0 && by_length) chunk = usual_chunk;
  if (chunk == 0 || config.max_positions <= chunk) return;
  config.dual_chunk_positions = config.max_positions = chunk;
}

ModelConfig read_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const nlohmann::json whole = read_json_file(path);
  const JsonFields outer(whole, path.string());
  // A model that also sees or hears has its language model in a configuration of its own.
  const nlohmann::json* text = outer.find("text_config");
  const JsonFields fields(text ? *text : whole, text ? path.string() + ": text_config" : path.string());
  const Architecture& architecture = find_architecture(fields);
  if (outer.find("quantization_config")) {
    fail("{}: quantization_config is set; hayloft reads checkpoints in f32, f16 and bf16", outer.where());
  }

  ModelConfig config;
  config.architecture = architecture.name;
  read_shape(fields, architecture, config);

  config.rms_norm_eps = static_cast<float>(fields.positive_or("rms_norm_eps", architecture.rms_norm_eps));
  config.tied_embeddings =
      fields.boolean_or("tie_word_embeddings", outer.boolean_or("tie_word_embeddings", architecture.tied_embeddings));
  read_activation(fields, config);
  const bool attention_bias = architecture.reads_attention_bias && fields.boolean_or("attention_bias", false);
  config.qkv_bias = attention_bias || config.architecture == "qwen2";
  config.output_bias = attention_bias;
  config.mlp_bias = architecture.reads_mlp_bias && fields.boolean_or("mlp_bias", false);
  read_parts(fields, config);
  read_layers(fields, config);
  read_rope(fields, architecture.rope_theta, config);
  std::int64_t chunk = 0;
  if (const nlohmann::json* dual = fields.find("dual_chunk_attention_config")) {
    chunk = JsonFields(*dual, fields.where() + ": dual_chunk_attention_config").integer("chunk_size", 1, most_tokens);
  }
  limit_to_one_chunk(config, chunk);
  set_rope(config);
  read_eos_tokens(directory, fields, architecture.eos_token, config);
  return config;
}

}  // namespace hayloft::runtime
