#include "runtime/checkpoint/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime {

namespace {

// Far above any model there is; they keep sizes derived from the file inside an int and the lists below small.
constexpr std::int64_t most_layers = 4096;
constexpr std::int64_t most_heads = 1 << 12;
constexpr std::int64_t most_width = 1 << 22;
constexpr std::int64_t most_tokens = std::int64_t{1} << 40;
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
};

constexpr Architecture architectures[] = {
    {"llama", 0, 0, 2048, 1e4, false, 2, true, true},         {"mistral", 8, 0, 131072, 1e4, false, 2, false, false},
    {"ministral", 8, 0, 131072, 1e4, false, 2, false, false}, {"qwen2", 32, 0, 32768, 1e4, false, -1, false, false},
    {"qwen3", 32, 128, 32768, 1e4, false, -1, true, false},   {"smollm3", 4, 0, 32768, 2e6, true, 128001, true, true},
};

const Architecture& find_architecture(const JsonFields& fields) {
  const std::string name = fields.text("model_type");
  for (const Architecture& architecture : architectures) {
    if (name == architecture.name) return architecture;
  }
  fields.refuse("model_type", *fields.find("model_type"),
                "llama, mistral, ministral, qwen2, qwen3 or smollm3 for hayloft to run it");
}

void read_shape(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  config.vocab_size = static_cast<int>(fields.integer("vocab_size", 1, most_width * 4));
  config.hidden_size = static_cast<int>(fields.integer("hidden_size", 1, most_width));
  config.intermediate_size = static_cast<int>(fields.integer("intermediate_size", 1, most_width));
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

// The layers' window from layer_types where the file lists them, else from `by_default`.
void read_layer_types(const JsonFields& fields, std::optional<std::int64_t> window,
                      const std::vector<bool>& sliding_by_default, ModelConfig& config) {
  std::vector<bool> sliding = sliding_by_default;
  if (const nlohmann::json* types = fields.find("layer_types")) {
    if (!types->is_array() || types->size() != sliding.size()) {
      fields.refuse("layer_types", *types, fmt::format("a list of {} layer types", sliding.size()));
    }
    for (std::size_t layer = 0; layer < sliding.size(); ++layer) {
      const nlohmann::json& type = (*types)[layer];
      sliding[layer] = type == "sliding_attention";
      if (!sliding[layer] && type != "full_attention" && type != "attention") {  // "attention" is its older name
        fields.refuse(fmt::format("layer_types[{}]", layer).c_str(), type, "full_attention or sliding_attention");
      }
    }
  }
  for (std::size_t layer = 0; layer < sliding.size(); ++layer) {
    if (sliding[layer] && !window) {
      fail("{}: layer_types[{}] is sliding_attention, but sliding_window is absent or switched off", fields.where(),
           layer);
    }
    config.sliding_window[layer] = sliding[layer] ? *window : 0;
  }
}

// sliding_window: `absent` when the file does not mention it, none when it is null.
std::optional<std::int64_t> read_window(const JsonFields& fields, std::optional<std::int64_t> absent) {
  if (fields.find("sliding_window")) return fields.integer("sliding_window", 1, most_tokens);
  return fields.is_null("sliding_window") ? std::nullopt : absent;
}

// smollm3: which layers use RoPE, by no_rope_layers (1 = RoPE) or every no_rope_layer_interval-th without.
void read_no_rope_layers(const JsonFields& fields, ModelConfig& config) {
  const nlohmann::json* listed = fields.find("no_rope_layers");
  if (!listed) {
    const std::int64_t interval = fields.integer_or("no_rope_layer_interval", 4, 1, most_tokens);
    for (int layer = 0; layer < config.layers; ++layer) config.rope[layer] = (layer + 1) % interval != 0;
    return;
  }
  if (!listed->is_array() || listed->size() < config.rope.size()) {
    fields.refuse("no_rope_layers", *listed, fmt::format("a list of at least {} zeros and ones", config.layers));
  }
  for (std::size_t layer = 0; layer < config.rope.size(); ++layer) {
    const nlohmann::json& entry = (*listed)[layer];
    std::int64_t flag = 0;
    if (entry.is_boolean()) {
      flag = entry.get<bool>();
    } else if (!read_integer(entry, 0, 1, flag)) {
      fields.refuse(fmt::format("no_rope_layers[{}]", layer).c_str(), entry, "0 or 1");
    }
    config.rope[layer] = flag != 0;
  }
}

void read_layers(const JsonFields& fields, ModelConfig& config) {
  const std::size_t layers = static_cast<std::size_t>(config.layers);
  config.sliding_window.assign(layers, 0);
  config.rope.assign(layers, true);

  if (config.architecture == "mistral" || config.architecture == "ministral") {
    const std::optional<std::int64_t> window = read_window(fields, 4096);
    // Every layer slides, unless a later revision of the family says otherwise layer by layer.
    read_layer_types(fields, window, std::vector<bool>(layers, window.has_value()), config);
  } else if (config.architecture == "qwen2" || config.architecture == "qwen3") {
    const bool used = fields.boolean_or("use_sliding_window", false);
    const std::optional<std::int64_t> window = used ? read_window(fields, 4096) : std::nullopt;
    const std::int64_t full_layers = fields.integer_or("max_window_layers", 28, 0, most_tokens);
    std::vector<bool> sliding(layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      sliding[layer] = window.has_value() && static_cast<std::int64_t>(layer) >= full_layers;
    }
    read_layer_types(fields, window, sliding, config);
  } else if (config.architecture == "smollm3") {
    read_no_rope_layers(fields, config);
    const std::optional<std::int64_t> window = read_window(fields, std::nullopt);
    const bool used = fields.boolean_or("use_sliding_window", false) && window.has_value();
    std::vector<bool> sliding(layers);
    for (std::size_t layer = 0; layer < layers; ++layer) sliding[layer] = used && !config.rope[layer];
    // The class masks by layer_types alone; use_sliding_window only chooses the default of the list.
    read_layer_types(fields, window, sliding, config);
  }
}

// Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between interpolated. In
// f32 throughout, as the reference computes it, because at a million tokens the last bit of a frequency shows.
void scale_llama3(const JsonFields& scaling, const JsonFields& fields, ModelConfig& config) {
  const float factor = static_cast<float>(scaling.positive("factor"));
  const float low = static_cast<float>(scaling.positive("low_freq_factor"));
  const float high = static_cast<float>(scaling.positive("high_freq_factor"));
  if (!(high > low)) {
    fail("{}: high_freq_factor {} must be larger than low_freq_factor {}", scaling.where(), high, low);
  }
  const char* original = "original_max_position_embeddings";
  const std::int64_t inside = scaling.integer_or(original, config.max_positions, 1, most_tokens);
  const float trained = static_cast<float>(fields.integer_or(original, inside, 1, most_tokens));

  for (float& frequency : config.inverse_frequency) {
    const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
    if (wavelength > trained / low) {
      frequency /= factor;
    } else if (!(wavelength < trained / high)) {
      const float smooth = (trained / wavelength - low) / (high - low);
      frequency = (1 - smooth) * frequency / factor + smooth * frequency;
    }
  }
}

// RoPE parameters lie in rope_parameters (transformers 5) or in rope_theta and rope_scaling (before).
void read_rope(const JsonFields& fields, double default_theta, ModelConfig& config) {
  static const nlohmann::json nothing = nlohmann::json::object();
  const nlohmann::json* older = fields.find("rope_scaling");
  if (older && older->is_object() && older->empty()) older = nullptr;
  const char* name = older ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* found = fields.find(name);
  const JsonFields rope(found ? *found : nothing, fmt::format("{}: {}", fields.where(), name));

  const double theta = rope.positive_or("rope_theta", fields.positive_or("rope_theta", default_theta));
  const double rotated = rope.positive_or("partial_rotary_factor", fields.positive_or("partial_rotary_factor", 1));
  if (rotated != 1) fail("{}: partial_rotary_factor {} is not supported; it must be 1", fields.where(), rotated);

  config.inverse_frequency.resize(static_cast<std::size_t>(config.head_dim / 2));
  for (int i = 0; i < config.head_dim / 2; ++i) {
    // The power is taken in f64 of operands in f32, then rounded: what the reference's f32 power gives.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const float power = static_cast<float>(std::pow(double{static_cast<float>(theta)}, double{exponent}));
    config.inverse_frequency[static_cast<std::size_t>(i)] = 1.0f / power;
  }

  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "linear") {
    const float factor = static_cast<float>(rope.positive("factor"));
    for (float& frequency : config.inverse_frequency) frequency /= factor;
    config.max_positions =
        static_cast<std::int64_t>(static_cast<double>(config.max_positions) * rope.positive("factor"));
  } else if (type == "llama3") {
    scale_llama3(rope, fields, config);
  } else if (type != "default") {
    rope.refuse("rope_type", type, "default, linear or llama3");
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

int ModelConfig::global_layers() const {
  return static_cast<int>(std::count(sliding_window.begin(), sliding_window.end(), 0));
}

ModelConfig read_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const nlohmann::json json = read_json_file(path);
  const JsonFields fields(json, path.string());
  const Architecture& architecture = find_architecture(fields);
  if (fields.find("quantization_config")) {
    fail("{}: quantization_config is set; hayloft reads checkpoints in f32, f16 and bf16", fields.where());
  }

  ModelConfig config;
  config.architecture = architecture.name;
  read_shape(fields, architecture, config);

  config.rms_norm_eps = static_cast<float>(fields.positive_or("rms_norm_eps", 1e-6));
  config.tied_embeddings = fields.boolean_or("tie_word_embeddings", architecture.tied_embeddings);
  const std::string activation = fields.text_or("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", activation, "silu (swish)");

  const bool attention_bias = architecture.reads_attention_bias && fields.boolean_or("attention_bias", false);
  config.qkv_bias = attention_bias || config.architecture == "qwen2";
  config.output_bias = attention_bias;
  config.mlp_bias = architecture.reads_mlp_bias && fields.boolean_or("mlp_bias", false);
  config.qk_norm = config.architecture == "qwen3";

  read_layers(fields, config);
  read_rope(fields, architecture.rope_theta, config);
  read_eos_tokens(directory, fields, architecture.eos_token, config);
  return config;
}

}  // namespace hayloft::runtime
