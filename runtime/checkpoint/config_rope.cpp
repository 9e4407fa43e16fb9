#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "offload/error.h"
#include "runtime/checkpoint/config_parts.h"

namespace hayloft::runtime {
namespace {

const nlohmann::json nothing = nlohmann::json::object();

// Names what some scaling of transformers goes by, though another than the file's may; and sections of a position that
// has three parts where a picture is seen.
constexpr std::array<std::string_view, 23> rope_names = {"rope_type",
                                                         "type",
                                                         "rope_theta",
                                                         "factor",
                                                         "original_max_position_embeddings",
                                                         "max_position_embeddings",
                                                         "attention_factor",
                                                         "beta_fast",
                                                         "beta_slow",
                                                         "short_factor",
                                                         "long_factor",
                                                         "low_freq_factor",
                                                         "high_freq_factor",
                                                         "mscale",
                                                         "mscale_all_dim",
                                                         "truncate",
                                                         "partial_rotary_factor",
                                                         "llama_4_scaling_beta",
                                                         "mrope_section",
                                                         "mrope_interleaved",
                                                         "full_attention",
                                                         "sliding_attention",
                                                         "finetuned"};

// Returns what ministral3 takes for granted.
const nlohmann::json& ministral3_rope() {
  static const nlohmann::json rope = {{"rope_type", "yarn"},
                                      {"rope_theta", 1e6},
                                      {"factor", 16.0},
                                      {"original_max_position_embeddings", 16384},
                                      {"mscale", 1.0},
                                      {"mscale_all_dim", 1.0},
                                      {"llama_4_scaling_beta", 0.1}};
  return rope;
}

// Likewise gpt_oss.
const nlohmann::json& gpt_oss_rope() {
  static const nlohmann::json rope = {{"rope_type", "yarn"}, {"factor", 32.0},
                                      {"beta_fast", 32.0},   {"beta_slow", 1.0},
                                      {"truncate", false},   {"original_max_position_embeddings", 4096}};
  return rope;
}

// A number, or `absent` where there is none; 0 counts as none.
double number_or(const JsonFields& fields, const char* name, double absent) {
  const nlohmann::json* value = fields.find(name);
  if (value && value->is_number() && value->get<double>() == 0) return absent;
  return fields.positive_or(name, absent);
}

RopeScaling scaling_of(const JsonFields& rope, const ModelConfig& config) {
  const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (type == "default") return RopeScaling::none;
  if (type == "linear") return RopeScaling::linear;
  if (type == "dynamic") return RopeScaling::dynamic;
  if (type == "llama3") return RopeScaling::llama3;
  // Phi 3's files called longrope by other names.
  if (type == "longrope" || type == "su" || (type == "yarn" && config.architecture == "phi3"))
    return RopeScaling::longrope;
  if (type == "yarn") return RopeScaling::yarn;
  rope.refuse("rope_type", type, "default, linear, dynamic, yarn, longrope or llama3");
}

std::vector<float> factors(const JsonFields& rope, const char* name, int count) {
  const nlohmann::json* list = rope.find(name);
  const std::string expected = fmt::format("a list of {} numbers above zero", count);
  if (!list) fail("{}: {} is missing; it should be {}", rope.where(), name, expected);
  if (!list->is_array() || list->size() != static_cast<std::size_t>(count)) rope.refuse(name, *list, expected);
  std::vector<float> out;
  for (const nlohmann::json& each : *list) {
    if (!each.is_number() || !(each.get<double>() > 0) || !std::isfinite(each.get<float>()))
      rope.refuse(name, each, expected);
    out.push_back(each.get<float>());
  }
  return out;
}

int rotated_dimensions(const JsonFields& rope, const JsonFields& fields, const ModelConfig& config) {
  const bool hybrid = config.architecture == "qwen3_5_text" || config.architecture == "qwen3_5_moe_text";
  const bool partial = config.architecture == "phi3" || hybrid;
  const double by_default = hybrid ? 0.25 : 1;
  const double share =
      rope.positive_or("partial_rotary_factor", fields.positive_or("partial_rotary_factor", by_default));
  if (share == 1) return config.head_dim;
  const int dimensions = static_cast<int>(std::floor(config.head_dim * std::min(share, 1.0)));
  if (!partial || share > 1 || dimensions < 2 || dimensions % 2 != 0) {
    fail(
        "{}: partial_rotary_factor {} of heads of {} components is not supported; it must be 1, or for phi3 and "
        "qwen3_5 leave an even number of them",
        fields.where(), share, config.head_dim);
  }
  return dimensions;
}

// Returns what training has seen: the field of the model counts before that of its RoPE.
std::int64_t original_positions(const JsonFields& rope, const JsonFields& fields, std::int64_t positions) {
  const char* name = "original_max_position_embeddings";
  const std::int64_t inside = rope.integer_or(name, positions, 1, most_tokens);
  return fields.integer_or(name, inside, 1, most_tokens);
}

std::optional<double> optional_number(const JsonFields& rope, const char* name) {
  if (!rope.find(name)) return std::nullopt;
  return rope.positive(name);
}

RopeParameters read_parameters(const JsonFields& rope, const JsonFields& fields, double theta,
                               const ModelConfig& config) {
  RopeParameters out;
  out.base = rope.positive_or("rope_theta", theta);
  out.dimensions = rotated_dimensions(rope, fields, config);
  out.scaling = scaling_of(rope, config);
  out.original_positions = config.max_positions;
  const auto positions = static_cast<double>(config.max_positions);
  switch (out.scaling) {
    case RopeScaling::none:
      break;
    case RopeScaling::linear:
    case RopeScaling::dynamic:
      out.factor = rope.positive("factor");
      // Gemma 3's files count the scaling in.
      if (config.architecture == "gemma3_text") {
        out.original_positions = static_cast<std::int64_t>(std::round(positions / out.factor));
      }
      break;
    case RopeScaling::llama3:
      out.factor = rope.positive("factor");
      out.low_frequency = rope.positive("low_freq_factor");
      out.high_frequency = rope.positive("high_freq_factor");
      if (!(out.high_frequency > out.low_frequency)) {
        fail("{}: high_freq_factor {} must be larger than low_freq_factor {}", rope.where(), out.high_frequency,
             out.low_frequency);
      }
      out.original_positions = original_positions(rope, fields, config.max_positions);
      break;
    case RopeScaling::yarn:
      out.original_positions = original_positions(rope, fields, config.max_positions);
      out.factor = rope.positive_or("factor", positions / static_cast<double>(out.original_positions));
      out.attention_factor = optional_number(rope, "attention_factor");
      out.beta_fast = number_or(rope, "beta_fast", 32);
      out.beta_slow = number_or(rope, "beta_slow", 1);
      out.mscale = number_or(rope, "mscale", 0);
      out.mscale_all = number_or(rope, "mscale_all_dim", 0);
      out.truncate = rope.boolean_or("truncate", true);
      break;
    case RopeScaling::longrope:
      out.original_positions = original_positions(rope, fields, config.max_positions);
      out.factor = rope.positive_or("factor", positions / static_cast<double>(out.original_positions));
      out.attention_factor = optional_number(rope, "attention_factor");
      out.short_factors = factors(rope, "short_factor", out.dimensions / 2);
      out.long_factors = factors(rope, "long_factor", out.dimensions / 2);
      break;
  }
  return out;
}

}  // namespace

// They lie in rope_parameters (transformers 5), which may have some for each type of layer, or in rope_theta and
// rope_scaling (before).
void read_rope(const JsonFields& fields, double default_theta, ModelConfig& config) {
  if (config.architecture == "gemma4_text") return read_gemma4_rope(fields, config);
  const nlohmann::json* older = fields.find("rope_scaling");
  if (older && older->is_object() && older->empty()) older = nullptr;
  const char* name = older ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* found = fields.find(name);
  if (!found) {
    found = config.architecture == "ministral3" ? &ministral3_rope()
            : config.architecture == "gpt_oss"  ? &gpt_oss_rope()
                                                : &nothing;
  }
  const JsonFields all(*found, fmt::format("{}: {}", fields.where(), name));
  const double theta = fields.positive_or("rope_theta", default_theta);

  const nlohmann::json* global = all.find("full_attention");
  const nlohmann::json* local = all.find("sliding_attention");
  if (config.architecture == "gemma3_text") {
    const JsonFields sliding(local ? *local : nothing, all.where() + ".sliding_attention");
    config.local_rope = read_parameters(sliding, fields, fields.positive_or("rope_local_base_freq", 1e4), config);
  } else if (global || local) {
    all.refuse(global ? "full_attention" : "sliding_attention", global ? *global : *local,
               "absent: this architecture has one RoPE for all of its layers");
  }
  const JsonFields rope(global ? *global : *found, global ? all.where() + ".full_attention" : all.where());
  config.global_rope = read_parameters(rope, fields, theta, config);
  note_unread(rope, rope_names, config);
  if (config.architecture == "ministral3") {
    config.query_log_scale = static_cast<float>(number_or(rope, "llama_4_scaling_beta", 0));
    // For a scaling that does not go by what training has seen the file may say it all the same.
    const bool goes_by_it = config.global_rope.scaling != RopeScaling::none &&
                            config.global_rope.scaling != RopeScaling::linear &&
                            config.global_rope.scaling != RopeScaling::dynamic;
    config.query_scale_positions =
        goes_by_it ? config.global_rope.original_positions
                   : rope.integer_or("original_max_position_embeddings", config.max_positions, 1, most_tokens);
  }
}

}  // namespace hayloft::runtime
