// The table of architectures: what each takes for granted, and where it departs from Llama.
#include <algorithm>
#include <cmath>
#include <list>
#include <mutex>
#include <string_view>

#include "gpu/backend.h"
#include "offload/error.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {
namespace {

void set_qwen2(const ConfigFields&, ModelConfig& config) {
  config.qkv_bias = true;
}

void set_qwen2_moe(const ConfigFields& fields, ModelConfig& config) {
  config.qkv_bias = fields.boolean("qkv_bias", true);
}

void set_qwen3(const ConfigFields&, ModelConfig& config) {
  config.qk_norm = true;
}

void set_qwen3_5(const ConfigFields& fields, ModelConfig& config) {
  config.qk_norm = true;
  config.norms_less_one = true;
  config.attention_gate = true;
  if (config.qkv_bias) fields.refuse("attention_bias", "false for a model whose attention has gates");
  config.draft_layers = static_cast<int>(fields.integer("mtp_num_hidden_layers", 0, 0, most_layers));
  config.draft_own_tables = fields.boolean("mtp_use_dedicated_embeddings", false);
  const auto size = [&](const char* name, std::int64_t absent, std::int64_t most) {
    return static_cast<int>(fields.integer(name, absent, 1, most));
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

void set_gemma3(const ConfigFields& fields, ModelConfig& config) {
  config.qk_norm = true;
  config.norms = Norms::both;
  config.norms_less_one = true;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  config.attention_scale = 1 / std::sqrt(static_cast<float>(fields.positive("query_pre_attn_scalar", 256)));
  for (const char* name : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (fields.has(name)) fields.refuse(name, "null: caps are not supported");
  }
  if (fields.boolean("use_bidirectional_attention", false)) {
    fields.refuse("use_bidirectional_attention", "false for a model that writes text");
  }
}

void set_gemma4(const ConfigFields& fields, ModelConfig& config) {
  config.qk_norm = config.value_norm = true;
  config.norms = Norms::both;
  config.layer_scales = true;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden_size));
  config.attention_scale = 1;
  if (fields.has("final_logit_softcapping")) {
    config.logit_cap = static_cast<float>(fields.positive("final_logit_softcapping", 0));
  }
  if (fields.has("use_bidirectional_attention") && fields.text("use_bidirectional_attention", "") == "all") {
    fields.refuse("use_bidirectional_attention", "vision or null for a model that writes text");
  }
  if (fields.integer("hidden_size_per_layer_input", 256, 0, most_width) != 0) {
    fields.refuse("hidden_size_per_layer_input",
                  "0: embeddings of each layer, as the models E2B and E4B have them, are not supported");
  }
  if (fields.integer("num_kv_shared_layers", 0, 0, most_layers) != 0) {
    fields.refuse("num_kv_shared_layers",
                  "0: layers that share keys and values, as the models E2B and E4B have them, are not supported");
  }
  for (const char* name : {"use_double_wide_mlp", "vocab_size_per_layer_input"}) fields.has(name);  // of those alone
}

void set_phi3(const ConfigFields&, ModelConfig& config) {
  config.fused = true;
}

void set_granite(const ConfigFields& fields, ModelConfig& config) {
  config.embedding_scale = static_cast<float>(fields.positive("embedding_multiplier", 1));
  config.residual_scale = static_cast<float>(fields.positive("residual_multiplier", 1));
  config.attention_scale = static_cast<float>(fields.positive("attention_multiplier", 1));
  config.logit_scale = static_cast<float>(1 / fields.positive("logits_scaling", 1));
}

void set_olmo2(const ConfigFields&, ModelConfig& config) {
  config.qk_norm = config.qk_norm_whole = true;
  config.norms = Norms::after;
}

void set_olmoe(const ConfigFields& fields, ModelConfig& config) {
  config.qk_norm = config.qk_norm_whole = true;
  if (fields.has("clip_qkv")) fields.refuse("clip_qkv", "null: caps are not supported");
}

void set_gpt_oss(const ConfigFields& fields, ModelConfig& config) {
  config.qkv_bias = config.output_bias = fields.boolean("attention_bias", true);
  config.attention_sinks = true;
  config.experts.biases = true;
  config.activation = Activation::clamped;
  config.activation_limit = static_cast<float>(fields.positive("swiglu_limit", 7));
  if (static_cast<float>(fields.positive("swiglu_alpha", gpu::clamped_slope)) != gpu::clamped_slope) {
    fields.refuse("swiglu_alpha", fmt::format("{} or absent", gpu::clamped_slope));
  }
}

// kv_heads, head_dim, max_positions, rope_theta, tied_embeddings, eos_token, rms_norm_eps; whether attention_bias and
// mlp_bias are read; the activation and the name of its field; its parts; its experts.
std::list<Architecture> built_in() {
  constexpr Activation silu = Activation::silu, gelu = Activation::gelu_tanh;
  constexpr const char* act = "hidden_act";
  using Shares = ExpertShares;
  constexpr const char *local = "num_local_experts", *whole = "intermediate_size";  // of one expert
  const ExpertFields of_mixtral = {local, 8, 2, whole, 14336};
  const ExpertFields of_qwen3 = {.count = 128, .used = 8, .inner = 768, .shares = Shares::as_said, .some_dense = true};
  const ExpertFields of_qwen2 = {
      .count = 60, .used = 4, .inner = 1408, .shares = Shares::as_said, .shared_inner = 5632, .some_dense = true};
  const ExpertFields of_qwen3_5 = {.count = 256, .used = 8, .inner = 512, .shared_inner = 512};
  const ExpertFields of_olmoe = {"num_experts", 64, 8, whole, 2048, Shares::as_said};
  const ExpertFields of_granite = {local, 8, 2, whole, 11008};
  const ExpertFields of_gpt_oss = {local, 128, 4, whole, 2880};
  const ExpertFields of_gemma4 = {.count = 128,
                                  .used = 8,
                                  .inner = 704,
                                  .used_field = "top_k_experts",
                                  .enabling_field = "enable_moe_block",
                                  .beside_mlp = true};
  constexpr const char* activation = "hidden_activation";
  return {
      {"llama", 0, 0, 2048, 1e4, false, 2, 1e-6, true, true},
      {"mistral", 8, 0, 131072, 1e4, false, 2},
      {"ministral", 8, 0, 131072, 1e4, false, 2},
      {"ministral3", 8, 128, 262144, 1e6, false, 2, 1e-5},
      {"qwen2", 32, 0, 32768, 1e4, false, -1, 1e-6, false, false, silu, act, set_qwen2},
      {"qwen3", 32, 128, 32768, 1e4, false, -1, 1e-6, true, false, silu, act, set_qwen3},
      {"qwen3_5_text", 4, 256, 32768, 1e4, false, -1, 1e-6, true, false, silu, act, set_qwen3_5},
      {"smollm3", 4, 0, 32768, 2e6, true, 128001, 1e-6, true, true},
      {"gemma3_text", 4, 256, 131072, 1e6, true, 1, 1e-6, true, false, gelu, activation, set_gemma3},
      {"gemma4_text", 4, 256, 131072, 1e6, true, 1, 1e-6, true, false, gelu, activation, set_gemma4, of_gemma4},
      {"phi3", 0, 0, 4096, 1e4, false, 32000, 1e-5, false, false, silu, act, set_phi3},
      {"granite", 0, 0, 2048, 1e4, false, 2, 1e-6, true, true, silu, act, set_granite},
      {"olmo2", 0, 0, 2048, 1e4, false, 50279, 1e-5, true, false, silu, act, set_olmo2},
      {"mixtral", 8, 0, 131072, 1e6, false, 2, 1e-5, false, false, silu, act, {}, of_mixtral},
      {"qwen2_moe", 16, 0, 32768, 1e4, false, -1, 1e-6, false, false, silu, act, set_qwen2_moe, of_qwen2},
      {"qwen3_moe", 4, 0, 32768, 1e4, false, -1, 1e-6, true, false, silu, act, set_qwen3, of_qwen3},
      {"qwen3_5_moe_text", 2, 256, 32768, 1e4, false, -1, 1e-6, true, false, silu, act, set_qwen3_5, of_qwen3_5},
      {"olmoe", 0, 0, 4096, 1e4, false, 50279, 1e-5, true, false, silu, act, set_olmoe, of_olmoe},
      {"granitemoe", 0, 0, 2048, 1e4, false, 2, 1e-6, true, false, silu, act, set_granite, of_granite},
      {"gpt_oss", 8, 64, 131072, 150000, false, -1, 1e-5, false, false, silu, act, set_gpt_oss, of_gpt_oss},
  };
}

// An entry of the list stays where it is.
struct Registry {
  std::mutex lock;
  std::list<Architecture> all = built_in();

  const Architecture* find(std::string_view name) const {
    for (const Architecture& architecture : all) {
      if (architecture.name == name) return &architecture;
    }
    return nullptr;
  }
};
Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

void register_architecture(Architecture architecture) {
  const std::string& name = architecture.name;
  const bool spelt = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
  if (!spelt) fail("'{}' cannot name an architecture: letters, digits, '_', '-' and '.' can", printable(name));
  const std::scoped_lock locked(registry().lock);
  if (registry().find(name)) fail("'{}' is an architecture already; choose another name", name);
  architecture.set_parts = [own = std::move(architecture.set_parts)](const ConfigFields& fields, ModelConfig& config) {
    if (own) own(fields, config);
    fields.refuse_unread(config);
  };
  registry().all.push_back(std::move(architecture));
}

const Architecture& find_architecture(const JsonFields& fields) {
  const std::string name = fields.text("model_type");
  std::string names;
  {
    const std::scoped_lock locked(registry().lock);
    if (const Architecture* found = registry().find(name)) return *found;
    for (const Architecture& each : registry().all) names += (names.empty() ? "" : ", ") + each.name;
  }
  if (name.find("moe") != std::string::npos || name == "qwen3_next") {
    fail("{}: model_type {} is a mixture of experts, which hayloft does not run", fields.where(), name);
  }
  fields.refuse("model_type", *fields.find("model_type"),
                "one of " + names + " for hayloft to run it; a program can add its own by register_architecture()");
}

const nlohmann::json* ConfigFields::find(const char* name) const {
  read_.insert(name);
  return fields_.find(name);
}

bool ConfigFields::has(const char* name) const {
  return find(name) != nullptr;
}

bool ConfigFields::boolean(const char* name, bool absent) const {
  read_.insert(name);
  return fields_.boolean_or(name, absent);
}

std::int64_t ConfigFields::integer(const char* name, std::int64_t absent, std::int64_t least, std::int64_t most) const {
  read_.insert(name);
  return fields_.integer_or(name, absent, least, most);
}

double ConfigFields::positive(const char* name, double absent) const {
  read_.insert(name);
  return fields_.positive_or(name, absent);
}

std::string ConfigFields::text(const char* name, const std::string& absent) const {
  read_.insert(name);
  return fields_.text_or(name, absent);
}

const std::string& ConfigFields::where() const {
  return fields_.where();
}

void ConfigFields::refuse(const char* name, const std::string& expected) const {
  const nlohmann::json* found = find(name);
  fields_.refuse(name, found ? *found : nlohmann::json(), expected);
}

void ConfigFields::refuse_unread(const ModelConfig& config) const {
  const auto refuse_unless = [&](const char* name, const nlohmann::json& neutral, const char* expected) {
    const nlohmann::json* const value = fields_.find(name);
    if (value && !read_.contains(name) && *value != neutral) {
      refuse(name, fmt::format("{}, or read by set_parts of {}", expected, config.architecture));
    }
  };
  for (const char* name : {"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling",
                           "logit_scale", "partial_rotary_factor"}) {
    refuse_unless(name, 1, "1");
  }
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping", "clip_qkv", "attention_chunk_size"}) {
    refuse_unless(name, nullptr, "null");
  }
  refuse_unless("query_pre_attn_scalar", config.head_dim, "head_dim");
  refuse_unless("use_bidirectional_attention", false, "false");
  refuse_unless("no_rope_layers", nlohmann::json::array_t(static_cast<std::size_t>(config.layers), 1), "all 1");
  const nlohmann::json* const slides = fields_.find("use_sliding_window");
  const bool some_slide = std::ranges::any_of(config.sliding_window, [](std::int64_t window) { return window != 0; });
  if (!some_slide && !fields_.find("layer_types") && !(slides && *slides == false)) {
    refuse_unless("sliding_window", nullptr, "null where layer_types says of no layer that it slides");
  }
}

}  // namespace hayloft::runtime
