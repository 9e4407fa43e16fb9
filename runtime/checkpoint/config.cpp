#include "runtime/checkpoint/config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {

namespace {

constexpr std::int64_t most_token_id = (std::int64_t{1} << 31) - 1;

void read_shape(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  config.vocab_size = static_cast<int>(fields.integer("vocab_size", 1, most_width * 4));
  config.hidden_size = static_cast<int>(fields.integer("hidden_size", 1, most_width));
  config.layers = static_cast<int>(fields.integer("num_hidden_layers", 1, most_layers));
  if (has_experts(fields, architecture.experts)) {
    read_experts(fields, architecture.experts, config);
  } else {
    config.intermediate_size = static_cast<int>(fields.integer("intermediate_size", 1, most_width));
  }
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
  if (config.head_dim % 8 != 0 || config.head_dim > offload::most_head_dim) {
    fail("{}: head_dim {} is not supported; it must be a multiple of 8 up to {}", fields.where(), config.head_dim,
         offload::most_head_dim);
  }
  config.max_positions = fields.integer_or("max_position_embeddings", architecture.max_positions, 1, most_tokens);
}

void read_activation(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  config.activation = architecture.activation;
  const bool silu = architecture.activation == Activation::silu;
  const char* const field = architecture.activation_field.c_str();
  const std::string name = fields.text_or(field, silu ? "silu" : "gelu_pytorch_tanh");
  if (silu ? name != "silu" && name != "swish" : name != "gelu_pytorch_tanh") {
    fields.refuse(field, name, silu ? "silu (swish)" : "gelu_pytorch_tanh");
  }
}

// Refuses quantised checkpoints but those of gpt_oss, whose experts are in MXFP4.
void refuse_quantised(const JsonFields& fields, const std::string& architecture) {
  const nlohmann::json* const found = fields.find("quantization_config");
  if (!found) return;
  const bool mxfp4 = found->is_object() && found->contains("quant_method") && found->at("quant_method") == "mxfp4";
  if (architecture == "gpt_oss" && mxfp4) return;
  fail("{}: quantization_config is set; hayloft reads checkpoints in f32, f16 and bf16, and gpt_oss in mxfp4",
       fields.where());
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

// Refuses what would change nothing, or stretch by no factor. `scaling` is what comes of model and overrides.
void refuse_inert(const RopeOverrides& overrides, RopeScaling scaling, bool models_own) {
  if (overrides.scaling == RopeScaling::none && overrides.factor > 0) {
    fail("--rope-scale {}: --rope-scaling none does not stretch; leave one of them out", overrides.factor);
  }
  if (overrides.scaling && scaling != RopeScaling::none && overrides.factor == 0 && !models_own) {
    fail("--rope-scaling {}: say by --rope-scale how much it stretches; the model says no factor for it",
         scaling == RopeScaling::linear ? "linear" : "yarn");
  }
  if (overrides.original_positions > 0 && (scaling == RopeScaling::none || scaling == RopeScaling::linear)) {
    fail("--yarn-orig-ctx {}: belongs to yarn, and RoPE is {}; leave it out, or add --rope-scaling yarn",
         overrides.original_positions, scaling == RopeScaling::none ? "not stretched" : "stretched linearly");
  }
}

void require_in_range(const RopeOverrides& overrides) {
  const auto in_range = [](double x) { return std::isfinite(x) && x >= 0; };
  if (!in_range(overrides.factor)) fail("--rope-scale {}: must be a number above 0", overrides.factor);
  if (!in_range(overrides.base)) fail("--rope-freq-base {}: must be a number above 0", overrides.base);
  if (overrides.original_positions < 0) fail("--yarn-orig-ctx {}: cannot be negative", overrides.original_positions);
}

void override_rope(const RopeOverrides& overrides, ModelConfig& config) {
  RopeParameters& rope = config.global_rope;
  const bool models_own = overrides.scaling == rope.scaling;
  if (overrides.base > 0) rope.base = overrides.base;
  if (overrides.scaling) {
    if (*overrides.scaling != rope.scaling) {  // what the model itself says of another way does not apply
      rope = {.base = rope.base,
              .dimensions = rope.dimensions,
              .still = rope.still,
              .original_positions = config.max_positions,
              .magnitude = rope.magnitude};
      rope.scaling = *overrides.scaling;
    }
  } else if (overrides.factor > 0 && rope.scaling == RopeScaling::none) {
    rope.scaling = RopeScaling::linear;
  }
  refuse_inert(overrides, rope.scaling, models_own);
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

int ModelConfig::feed_forward_width() const {
  return experts.count > 0 ? std::max({experts.inner, experts.shared_inner, experts.dense_inner, experts.beside_inner})
                           : intermediate_size;
}

LayerHeads ModelConfig::sliding_heads() const {
  return {sliding_kv_heads > 0 ? sliding_kv_heads : kv_heads, sliding_head_dim > 0 ? sliding_head_dim : head_dim};
}

LayerHeads ModelConfig::heads(int layer) const {
  return kind(layer) == LayerKind::sliding ? sliding_heads() : LayerHeads{kv_heads, head_dim};
}

int ModelConfig::widest_head() const {
  return std::max(head_dim, sliding_head_dim);
}

std::int64_t ModelConfig::widest_kv() const {
  return std::max(LayerHeads{kv_heads, head_dim}.width(), sliding_heads().width());
}

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
  require_in_range(overrides);
  RopeParameters& rope = config.global_rope;
  if (overrides.any()) {
    if (config.own_positions == 0) config.own_positions = config.max_positions;
    override_rope(overrides, config);
  }
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
  refuse_quantised(outer, architecture.name);
  refuse_quantised(fields, architecture.name);

  ModelConfig config;
  config.architecture = architecture.name;
  read_shape(fields, architecture, config);

  config.rms_norm_eps = static_cast<float>(fields.positive_or("rms_norm_eps", architecture.rms_norm_eps));
  config.tied_embeddings =
      fields.boolean_or("tie_word_embeddings", outer.boolean_or("tie_word_embeddings", architecture.tied_embeddings));
  read_activation(fields, architecture, config);
  config.qkv_bias = config.output_bias =
      architecture.reads_attention_bias && fields.boolean_or("attention_bias", false);
  config.mlp_bias = architecture.reads_mlp_bias && fields.boolean_or("mlp_bias", false);
  read_layers(fields, config);
  if (config.architecture == "gemma4_text") read_gemma4_heads(fields, config);
  if (architecture.set_parts) architecture.set_parts(ConfigFields(fields), config);
  read_rope(fields, architecture.rope_theta, config);
  std::int64_t chunk = 0;
  if (const nlohmann::json* dual = fields.find("dual_chunk_attention_config")) {
    chunk = JsonFields(*dual, fields.where() + ": dual_chunk_attention_config").integer("chunk_size", 1, most_tokens);
  }
  limit_to_one_chunk(config, chunk);
  set_rope(config);
  read_eos_tokens(directory, fields, architecture.eos_token, config);
  refuse_unread_experts(fields, config);
  look_at_unread(fields, config);
  return config;
}

}  // namespace hayloft::runtime
