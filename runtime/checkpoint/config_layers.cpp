#include <optional>

#include "offload/error.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {
namespace {

// layer_types, one for each layer; null where the file has none.
const nlohmann::json* listed_types(const JsonFields& fields, const ModelConfig& config) {
  const nlohmann::json* const types = fields.find("layer_types");
  if (types && (!types->is_array() || types->size() != static_cast<std::size_t>(config.layers))) {
    fields.refuse("layer_types", *types, fmt::format("a list of {} layer types", config.layers));
  }
  return types;
}

// The layers' window from layer_types where the file lists them, else from `by_default`.
void read_layer_types(const JsonFields& fields, std::optional<std::int64_t> window,
                      const std::vector<bool>& sliding_by_default, ModelConfig& config) {
  std::vector<bool> sliding = sliding_by_default;
  if (const nlohmann::json* types = listed_types(fields, config)) {
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

// gemma3: every so many-th layer is global, the others slide.
std::vector<bool> sliding_but_every(std::int64_t interval, std::size_t layers) {
  std::vector<bool> sliding(layers);
  for (std::size_t layer = 0; layer < layers; ++layer)
    sliding[layer] = (layer + 1) % static_cast<std::size_t>(interval) != 0;
  return sliding;
}

// qwen3_5: layers of gated delta rules, but for every so many-th, or as listed.
void read_recurrent_layers(const JsonFields& fields, ModelConfig& config) {
  const std::int64_t interval = fields.integer_or("full_attention_interval", 4, 1, most_layers);
  const nlohmann::json* const types = listed_types(fields, config);
  for (int layer = 0; layer < config.layers; ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    bool recurrent = (layer + 1) % interval != 0;
    if (types) {
      const nlohmann::json& type = (*types)[at];
      recurrent = type == "linear_attention";
      if (!recurrent && type != "full_attention") {
        fields.refuse(fmt::format("layer_types[{}]", layer).c_str(), type, "full_attention or linear_attention");
      }
    }
    config.recurrent[at] = recurrent;
  }
  if (config.global_layers() == 0) {
    fail("{}: no layer attends to the tokens before; at least one of layer_types must be full_attention",
         fields.where());
  }
}

}  // namespace

void read_layers(const JsonFields& fields, ModelConfig& config) {
  const std::size_t layers = static_cast<std::size_t>(config.layers);
  config.sliding_window.assign(layers, 0);
  config.rope.assign(layers, true);
  config.recurrent.assign(layers, false);

  if (config.architecture == "gemma3_text") {
    const std::int64_t interval = fields.integer_or(
        "sliding_window_pattern", fields.integer_or("_sliding_window_pattern", 6, 1, most_layers), 1, most_layers);
    read_layer_types(fields, read_window(fields, 4096), sliding_but_every(interval, layers), config);
  } else if (config.architecture == "gemma4_text") {
    read_layer_types(fields, read_window(fields, 512), sliding_but_every(6, layers), config);
    if (config.sliding_window.back() > 0) {  // as the models' own code has it
      config.notes.push_back(fmt::format(
          "{}: layer_types[{}] is taken for full_attention, as transformers takes the last of this architecture",
          fields.where(), layers - 1));
      config.sliding_window.back() = 0;
    }
  } else if (config.architecture == "phi3" || config.architecture == "ministral3") {
    // A window of as many positions as the model was made for hides nothing.
    std::optional<std::int64_t> window = read_window(fields, std::nullopt);
    if (window && *window >= config.max_positions) window.reset();
    config.sliding_window.assign(layers, window.value_or(0));
  } else if (config.architecture == "mistral" || config.architecture == "ministral") {
    const std::optional<std::int64_t> window = read_window(fields, 4096);
    // Every layer slides, unless a later revision of the family says otherwise layer by layer.
    read_layer_types(fields, window, std::vector<bool>(layers, window.has_value()), config);
  } else if (config.architecture == "mixtral" || config.architecture == "qwen3_moe") {
    const bool qwen = config.architecture == "qwen3_moe";
    const bool used = !qwen || fields.boolean_or("use_sliding_window", false);
    fields.find("sliding_window");  // which is there in every file of Qwen, and holds where it is used
    const std::optional<std::int64_t> absent = qwen ? std::optional<std::int64_t>(4096) : std::nullopt;
    config.sliding_window.assign(layers, used ? read_window(fields, absent).value_or(0) : 0);
  } else if (config.architecture == "qwen2" || config.architecture == "qwen3" || config.architecture == "qwen2_moe") {
    const bool used = fields.boolean_or("use_sliding_window", false);
    fields.find("sliding_window");  // which is there in every file, and holds where it is used
    const std::optional<std::int64_t> window = used ? read_window(fields, 4096) : std::nullopt;
    const std::int64_t full_layers = fields.integer_or("max_window_layers", 28, 0, most_tokens);
    std::vector<bool> sliding(layers);
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const bool upper = static_cast<std::int64_t>(layer) >= full_layers;
      sliding[layer] = window.has_value() && (config.architecture == "qwen2_moe" ? !upper && layer % 2 == 0 : upper);
    }
    read_layer_types(fields, window, sliding, config);
  } else if (config.architecture == "qwen3_5_text" || config.architecture == "qwen3_5_moe_text") {
    read_recurrent_layers(fields, config);
  } else if (config.architecture == "gpt_oss") {  // every other layer slides, the first among them
    read_layer_types(fields, read_window(fields, 128), sliding_but_every(2, layers), config);
  } else if (config.architecture == "smollm3") {
    read_no_rope_layers(fields, config);
    const std::optional<std::int64_t> window = read_window(fields, std::nullopt);
    const bool used = fields.boolean_or("use_sliding_window", false) && window.has_value();
    std::vector<bool> sliding(layers);
    for (std::size_t layer = 0; layer < layers; ++layer) sliding[layer] = used && !config.rope[layer];
    // The class masks by layer_types alone; use_sliding_window only chooses the default of the list.
    read_layer_types(fields, window, sliding, config);
  } else if (config.architecture != "llama" && config.architecture != "granite" && config.architecture != "olmo2" &&
             config.architecture != "granitemoe" && config.architecture != "olmoe") {
    // For a registered one the file's list holds, and what is not listed is its own business.
    read_layer_types(fields, read_window(fields, std::nullopt), std::vector<bool>(layers), config);
  }
}

}  // namespace hayloft::runtime
