#include <algorithm>
#include <cmath>
#include <utility>

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

// Notes keys that count here, as in transformers, and not in llama.cpp's reading of the architecture; and one that
// counts in neither, into which converters write either of two numbers: the magnitude, or a factor of it.
void note_yarn(const Keys& keys, const RopeParameters& rope, std::vector<std::string>& notes) {
  if (constexpr const char* passed = "rope.scaling.yarn_attn_factor"; keys.contains(passed)) {
    notes.push_back(fmt::format("{}: {}.{} is passed over, as llama.cpp has it: converters write two numbers there",
                                keys.file(), keys.architecture(), passed));
  }
  const bool mistral = keys.is("mistral3");
  std::string names;
  const auto note = [&](bool differs, const char* name) {
    if (differs) names.append(names.empty() ? "" : ", ").append(name);
  };
  note(!mistral && rope.beta_fast != 32, "yarn_beta_fast");
  note(!mistral && rope.beta_slow != 1, "yarn_beta_slow");
  note(!mistral && rope.mscale_all > 0, "yarn_log_multiplier");
  if (names.empty()) return;
  notes.push_back(
      fmt::format("{}: {} of {}.rope.scaling count, as the models' makers have it; llama.cpp passes them over in this "
                  "architecture",
                  keys.file(), names, keys.architecture()));
}

void read_yarn(const Keys& keys, RopeParameters& rope, std::vector<std::string>& notes) {
  rope.scaling = RopeScaling::yarn;
  rope.beta_fast = keys.positive_or("rope.scaling.yarn_beta_fast", 32);
  rope.beta_slow = keys.positive_or("rope.scaling.yarn_beta_slow", 1);
  if (constexpr const char* whole = "rope.scaling.attn_factor"; keys.is("olmo2") && keys.contains(whole)) {
    rope.attention_factor = std::exchange(rope.magnitude, 1);
    notes.push_back(
        fmt::format("{}: {}.{} is the whole magnitude of YaRN, as OLMo's makers have it; llama.cpp multiplies "
                    "its own by it",
                    keys.file(), keys.architecture(), whole));
  }
  if (keys.nonzero_or("rope.scaling.yarn_log_multiplier", 0) > 0) {
    rope.mscale = 1;
    rope.mscale_all = keys.positive("rope.scaling.yarn_log_multiplier");
  }
  if (rope.original_positions < 1) keys.refuse("context_length", "there, for YaRN goes by it");
  note_yarn(keys, rope, notes);
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
    read_yarn(keys, rope, config.notes);
  } else if (type == "none" && factor != 1 && keys.is("gpt-oss")) {
    keys.refuse(keys.contains("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear",
                "1 or absent beside the type none: llama.cpp scales sliding layers by it");
  } else if (type != "none" && type != "linear") {
    keys.refuse("rope.scaling.type", "none, linear, yarn or, with factors, longrope");
  }
}

// Takes the divisors of gemma4's frequencies for what they say: the last pairs of components stand still.
void take_still_pairs(const Keys& keys, RopeParameters& rope) {
  constexpr float stands_still = 1e20f;  // converters write 1e30
  if (rope.divisors.empty()) fail("{}: has no {}, which says which components turn", keys.file(), llama3_factors);
  const auto moves = [](float divisor) { return divisor < stands_still; };
  const auto still = std::ranges::find_if_not(rope.divisors, moves);
  const bool known = std::all_of(rope.divisors.begin(), still, [](float divisor) { return divisor == 1; }) &&
                     std::none_of(still, rope.divisors.end(), moves);
  if (!known) fail("{}: {} must be ones, and then 1e30, in this architecture", keys.file(), llama3_factors);
  rope.still = static_cast<int>(rope.divisors.end() - still);
  rope.divisors.clear();
}

// Pairs of a head's components belong to sections, of which a text has one position in all; llama.cpp leaves those of
// no section unturned.
void look_at_sections(const Keys& keys, ModelConfig& config) {
  constexpr const char* name = "rope.dimension_sections";
  if (!keys.contains(name)) return;
  const std::vector<std::int64_t> sections = keys.integers(name);
  std::int64_t sum = 0;
  for (const std::int64_t each : sections) {
    if (each < 0 || each > config.head_dim) keys.refuse(name, fmt::format("sizes from 0 to {}", config.head_dim));
    sum += each;
  }
  if (sections.size() != 4) keys.refuse(name, "a list of 4 sizes");
  const int pairs = config.global_rope.dimensions / 2;
  int unturned = 0;
  for (int pair = 0; pair < pairs; ++pair) {
    const std::int64_t place = sum == 0 ? 0 : pair % sum;
    if (place >= 3 * sections[static_cast<std::size_t>(place % 3)]) ++unturned;
  }
  if (unturned == 0) return;
  config.notes.push_back(
      fmt::format("{}: {}.{} holds no section for {} of {} pairs of a head's components: they turn as the others do, "
                  "as the models' makers have it; llama.cpp does not turn them",
                  keys.file(), keys.architecture(), name, unturned, pairs));
}

}  // namespace

void read_gguf_rope(const Keys& keys, const Tensors& tensors, ModelConfig& config) {
  RopeParameters& rope = config.global_rope;
  rope.dimensions = static_cast<int>(keys.integer_or("rope.dimension_count", config.head_dim, 2, config.head_dim));
  if (rope.dimensions % 2 != 0) keys.refuse("rope.dimension_count", "an even number");
  if ((find_gguf_architecture(keys.architecture())->pairs || keys.is("gemma4")) && rope.dimensions != config.head_dim) {
    keys.refuse("rope.dimension_count", fmt::format("{}, that of a head, in this architecture", config.head_dim));
  }
  if (keys.is("qwen35") || keys.is("qwen35moe")) look_at_sections(keys, config);
  rope.base = keys.positive_or("rope.freq_base", 1e4);
  rope.original_positions =
      keys.integer_or("rope.scaling.original_context_length", config.max_positions, 0, most_positions);
  const std::int64_t trained = std::max<std::int64_t>(rope.original_positions, 1);
  read_gguf_scaling(keys, tensors, config);
  rope.divisors = read_factors(keys, tensors, llama3_factors, rope.dimensions / 2);
  const bool some_slide = config.count(LayerKind::sliding) > 0;
  if (keys.is("gemma4")) {
    take_still_pairs(keys, rope);
    const int d = config.sliding_heads().dim;
    const auto turned = static_cast<int>(keys.integer_or("rope.dimension_count_swa", d, 2, d));
    if (turned % 2 != 0) keys.refuse("rope.dimension_count_swa", "an even number");
    config.local_rope = {.base = keys.positive_or("rope.freq_base_swa", 1e4), .dimensions = turned};
    config.local_rope.magnitude = rope.magnitude;
  } else if (keys.is("gemma3")) {
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
