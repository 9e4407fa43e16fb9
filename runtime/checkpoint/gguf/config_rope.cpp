#include <algorithm>
#include <cmath>

#include "offload/error.h"
#include "runtime/checkpoint/gguf/config.h"
#include "runtime/checkpoint/gguf/config_parts.h"

namespace hayloft::runtime::gguf {
namespace {

constexpr const char* llama3_factors = "rope_freqs.weight";
constexpr const char* long_factors = "rope_factors_long.weight";
constexpr const char* short_factors = "rope_factors_short.weight";

// Empty where there is no such tensor.
std::vector<float> read_factors(const Keys& keys, const Tensors& tensors, const char* name, int count) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return {};
  const Tensor& tensor = found->second;
  if (tensor.type != TensorType::f32 || tensor.shape != std::vector<std::int64_t>{count}) {
    fail("{}: {} must be {} numbers in F32", keys.file(), name, count);
  }
  std::vector<float> numbers(static_cast<std::size_t>(count));
  dequantise(tensor.type, tensor.data, numbers.data());
  for (const float each : numbers) {
    if (!(each > 0)) fail("{}: {} holds {}, but divisors are above zero", keys.file(), name, each);
  }
  return numbers;
}

void read_yarn(const Keys& keys, RopeParameters& rope) {
  rope.scaling = RopeScaling::yarn;
  rope.beta_fast = keys.positive_or("rope.scaling.yarn_beta_fast", 32);
  rope.beta_slow = keys.positive_or("rope.scaling.yarn_beta_slow", 1);
  if (keys.contains("rope.scaling.yarn_attn_factor")) {
    rope.attention_factor = keys.positive("rope.scaling.yarn_attn_factor");
  }
  if (keys.nonzero_or("rope.scaling.yarn_log_multiplier", 0) > 0) {
    rope.mscale = 1;
    rope.mscale_all = keys.positive("rope.scaling.yarn_log_multiplier");
  }
  if (rope.original_positions < 1) keys.refuse("context_length", "there, for YaRN goes by it");
}

void read_longrope(const Keys& keys, const Tensors& tensors, RopeParameters& rope) {
  rope.scaling = RopeScaling::longrope;
  rope.long_factors = read_factors(keys, tensors, long_factors, rope.dimensions / 2);
  rope.short_factors = read_factors(keys, tensors, short_factors, rope.dimensions / 2);
  if (rope.short_factors.empty()) fail("{}: has {} and no {}", keys.file(), long_factors, short_factors);
  rope.attention_factor = 1;  // what there is of it is the magnitude
  if (!keys.contains("context_length")) keys.refuse("context_length", "there, for longrope's factors go by it");
}

// Files that name no type are scaled linearly, and only where they have a factor.
void read_gguf_scaling(const Keys& keys, const Tensors& tensors, ModelConfig& config) {
  RopeParameters& rope = config.global_rope;
  const std::string_view type = keys.text_or("rope.scaling.type", "linear");
  const double older = keys.nonzero_or("rope.scale_linear", 1);
  const double factor = keys.contains("rope.scaling.factor") ? keys.nonzero_or("rope.scaling.factor", 1) : older;
  rope.magnitude = keys.positive_or("rope.scaling.attn_factor", 1);
  if (tensors.contains(long_factors)) {  // which is what llama.cpp goes by
    if (factor != 1) keys.refuse("rope.scaling.factor", fmt::format("1 beside {}", long_factors));
    read_longrope(keys, tensors, rope);
  } else if (tensors.contains(short_factors)) {
    fail("{}: has {} and no {}", keys.file(), short_factors, long_factors);
  } else if (type == "linear" && factor != 1) {
    rope.scaling = RopeScaling::linear;
    rope.factor = factor;
    // The context length of a file counts the scaling in.
    rope.original_positions =
        static_cast<std::int64_t>(std::round(static_cast<double>(config.max_positions) / rope.factor));
  } else if (type == "yarn") {
    rope.factor = keys.positive("rope.scaling.factor");
    read_yarn(keys, rope);
  } else if (type != "none" && type != "linear") {
    keys.refuse("rope.scaling.type", "none, linear, yarn or, with factors, longrope");
  }
}

}  // namespace

void read_gguf_rope(const Keys& keys, const Tensors& tensors, ModelConfig& config) {
  RopeParameters& rope = config.global_rope;
  rope.dimensions = static_cast<int>(keys.integer_or("rope.dimension_count", config.head_dim, 2, config.head_dim));
  if (rope.dimensions % 2 != 0) keys.refuse("rope.dimension_count", "an even number");
  rope.base = keys.positive_or("rope.freq_base", 1e4);
  rope.original_positions =
      keys.integer_or("rope.scaling.original_context_length", config.max_positions, 0, most_positions);
  const std::int64_t trained = std::max<std::int64_t>(rope.original_positions, 1);
  read_gguf_scaling(keys, tensors, config);
  rope.divisors = read_factors(keys, tensors, llama3_factors, rope.dimensions / 2);
  const bool some_slide = config.count(LayerKind::sliding) > 0;
  if (keys.is("gemma3")) {
    config.local_rope = {.base = keys.positive_or("rope.freq_base_swa", 1e4), .dimensions = rope.dimensions};
    config.local_rope.magnitude = rope.magnitude;
  } else if (keys.is("olmo2") && some_slide) {  // OLMo 3: scaling is for layers that see everything
    config.local_rope = {.base = rope.base, .dimensions = rope.dimensions};
  }
  if (keys.is("mistral3")) {
    config.query_log_scale = static_cast<float>(keys.nonzero_or("attention.temperature_scale", 0));
    config.query_scale_positions = trained;
  }
}

bool holds_rope_factors(std::string_view tensor) {
  return tensor == llama3_factors || tensor == long_factors || tensor == short_factors;
}

}  // namespace hayloft::runtime::gguf
