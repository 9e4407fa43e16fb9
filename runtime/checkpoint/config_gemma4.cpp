// Reads what a config.json of Gemma 4 says of its two kinds of layers, and nobody else's does: heads and RoPE of each.
#include <algorithm>
#include <cmath>
#include <string>

#include "offload/error.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {
namespace {

const nlohmann::json no_fields = nlohmann::json::object();

// Reads per_layer_config, in which transformers 5 writes what a layer has otherwise than the fields say.
LayerHeads heads_of_layer(const JsonFields& layers, int layer, LayerHeads usual) {
  const std::string index = std::to_string(layer);
  const nlohmann::json* const found = layers.find(index.c_str());
  if (!found) return usual;
  const JsonFields fields(*found, fmt::format("{}[{}]", layers.where(), layer));
  const LayerHeads heads{static_cast<int>(fields.integer_or("num_key_value_heads", usual.kv, 1, most_heads)),
                         static_cast<int>(fields.integer_or("head_dim", usual.dim, 1, most_width))};
  for (const std::string& name : fields.unread()) {
    fields.refuse(name.c_str(), *fields.find(name.c_str()), "absent: layers differ in their heads alone here");
  }
  return heads;
}

LayerHeads listed_heads(const JsonFields& fields, const nlohmann::json& listed, const ModelConfig& config) {
  const JsonFields layers(listed, fields.where() + ": per_layer_config");
  LayerHeads usual{config.kv_heads, config.head_dim}, global{};
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerHeads heads = heads_of_layer(layers, layer, usual);
    const bool slides = config.kind(layer) == LayerKind::sliding;
    if (!slides && global.dim == 0) global = heads;
    if (heads != (slides ? usual : global)) {
      fail("{}[{}]: heads of another shape than those of other layers of its type are not supported", layers.where(),
           layer);
    }
  }
  for (const std::string& name : layers.unread()) layers.refuse(name.c_str(), *layers.find(name.c_str()), "absent");
  const std::int64_t older = fields.integer_or("global_head_dim", global.dim, 1, most_width);
  const std::string as_listed = fmt::format("{}, as of per_layer_config", global.dim);
  if (older != global.dim) fields.refuse("global_head_dim", older, as_listed);
  return global;
}

// Reads the RoPE of global layers, `proportional` to transformers: frequencies are those of whole heads, and of the
// pairs of components the last ones stand still.
RopeParameters read_proportional(const JsonFields& rope, const ModelConfig& config) {
  RopeParameters out;
  out.base = rope.positive_or("rope_theta", 1e6);
  out.dimensions = config.head_dim;
  out.original_positions = config.max_positions;
  const std::string type = rope.text_or("rope_type", "proportional");
  if (type != "proportional") rope.refuse("rope_type", type, "proportional in global layers of this architecture");
  const double share = rope.positive_or("partial_rotary_factor", 1);
  const int pairs = config.head_dim / 2;
  const int turning = static_cast<int>(std::floor(std::min(share, 1.0) * config.head_dim / 2));
  if (share > 1 || turning < 1) {
    rope.refuse("partial_rotary_factor", share, fmt::format("a share of 1 by which a pair of {} turns", pairs));
  }
  out.still = pairs - turning;
  out.factor = rope.positive_or("factor", 1);
  if (out.factor == 1) return out;
  out.scaling = RopeScaling::linear;
  const double original = static_cast<double>(config.max_positions) / out.factor;  // the file counts the scaling in
  out.original_positions = static_cast<std::int64_t>(std::round(original));
  return out;
}

}  // namespace

void read_gemma4_heads(const JsonFields& fields, ModelConfig& config) {
  const LayerHeads usual{config.kv_heads, config.head_dim};
  config.sliding_kv_heads = usual.kv;
  config.sliding_head_dim = usual.dim;
  config.keys_as_values = fields.boolean_or("attention_k_eq_v", false);
  const auto counted = static_cast<int>(fields.integer_or("num_global_key_value_heads", usual.kv, 1, most_heads));
  LayerHeads global{config.keys_as_values ? counted : usual.kv, 0};  // as the models' own code has it
  if (const nlohmann::json* const listed = fields.find("per_layer_config")) {
    global = listed_heads(fields, *listed, config);
  } else {
    global.dim = static_cast<int>(fields.integer_or("global_head_dim", 512, 1, most_width));
  }
  if (global.dim % 8 != 0 || global.dim > offload::most_head_dim) {
    fail("{}: global_head_dim {} is not supported; it must be a multiple of 8 up to {}", fields.where(), global.dim,
         offload::most_head_dim);
  }
  if (config.query_heads % global.kv != 0) {
    fail("{}: num_global_key_value_heads {} is not a divisor of {} query heads", fields.where(), global.kv,
         config.query_heads);
  }
  config.kv_heads = global.kv;
  config.head_dim = global.dim;
}

void read_gemma4_rope(const JsonFields& fields, ModelConfig& config) {
  static const nlohmann::json usual = {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}};
  const nlohmann::json* const said = fields.find("rope_parameters");
  const JsonFields all(said ? *said : no_fields, fields.where() + ": rope_parameters");
  const auto part = [&](const char* name, const nlohmann::json& absent) {
    const nlohmann::json* const found = all.find(name);
    if (said && !found) fail("{}: has no {}", all.where(), name);
    return JsonFields(found ? *found : absent, fmt::format("{}.{}", all.where(), name));
  };
  const JsonFields sliding = part("sliding_attention", no_fields), global = part("full_attention", usual);
  const std::string type = sliding.text_or("rope_type", "default");
  if (type != "default") sliding.refuse("rope_type", type, "default in sliding layers of this architecture");
  config.local_rope = {.base = sliding.positive_or("rope_theta", 1e4), .dimensions = config.sliding_heads().dim};
  config.global_rope = read_proportional(global, config);
  for (const JsonFields* each : {&all, &sliding, &global}) note_unread(*each, {}, config);
}

}  // namespace hayloft::runtime
