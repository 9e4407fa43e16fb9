#include "offload/error.h"
#include "runtime/checkpoint/gguf/config_parts.h"

namespace hayloft::runtime::gguf {
namespace {

// Layers of gated delta rules: listed, those behind the language model too, or all but every so many-th.
void read_recurrent_blocks(const Keys& keys, ModelConfig& config) {
  if (config.count(LayerKind::sliding) > 0) {
    keys.refuse("attention.sliding_window", "0 or absent: no layer slides in this architecture");
  }
  const auto layers = static_cast<std::size_t>(config.layers);
  config.recurrent.assign(layers, false);
  const char* const listed = "attention.recurrent_layers";
  const auto interval = static_cast<std::size_t>(keys.integer_or("full_attention_interval", 4, 1, most_blocks));
  for (std::size_t layer = 0; layer < layers; ++layer) config.recurrent[layer] = (layer + 1) % interval != 0;
  if (keys.contains(listed)) {
    const std::vector<std::int64_t> list = keys.integers(listed);
    if (list.size() < layers) {
      keys.refuse(listed, fmt::format("a list of {} flags, one for each layer", config.layers));
    }
    for (std::size_t layer = 0; layer < layers; ++layer) config.recurrent[layer] = list[layer] != 0;
  }
  if (config.global_layers() == 0) {
    fail("{}: none of {} layers attends to the tokens before; at least one must", keys.file(), config.layers);
  }
}

// Reads which layers slide: listed, or all but every so many-th; with an interval of 0 all, with 1 none.
void read_window_pattern(const Keys& keys, int usual_interval, ModelConfig& config) {
  constexpr const char* name = "attention.sliding_window_pattern";
  if (keys.is_list(name)) {
    const std::vector<std::int64_t> slides = keys.integers(name);
    if (slides.size() != config.sliding_window.size()) {
      keys.refuse(name, fmt::format("a list of {} numbers, one for each layer", config.layers));
    }
    for (std::size_t layer = 0; layer < slides.size(); ++layer) {
      if (slides[layer] == 0) config.sliding_window[layer] = 0;
    }
    return;
  }
  const auto interval = static_cast<std::size_t>(keys.integer_or(name, usual_interval, 0, most_blocks));
  for (std::size_t layer = 0; interval > 0 && layer < config.sliding_window.size(); ++layer) {
    if ((layer + 1) % interval == 0) config.sliding_window[layer] = 0;
  }
}

}  // namespace

void read_gguf_layers(const Keys& keys, ModelConfig& config) {
  const GgufArchitecture& architecture = *find_gguf_architecture(keys.architecture());
  const auto layers = static_cast<std::size_t>(config.layers);
  std::int64_t window = keys.integer_or("attention.sliding_window", 0, 0, most_positions);
  if (keys.is("gpt-oss")) window = keys.integer("attention.sliding_window", 1, most_positions);
  if (keys.is("phi3") && window >= config.max_positions) window = 0;  // it hides nothing
  config.sliding_window.assign(layers, window);
  read_window_pattern(keys, architecture.window_pattern, config);
  if (architecture.window_pattern == 0 && config.count(LayerKind::sliding) > 0) {
    config.notes.push_back(
        fmt::format("{}: {}.attention.sliding_window is {}: layers see so many tokens, as the models' makers have it; "
                    "llama.cpp lets those of this architecture see all",
                    keys.file(), keys.architecture(), window));
  }
  if (keys.is("qwen35") || keys.is("qwen35moe")) read_recurrent_blocks(keys, config);
  // It is a switch of Granite's alone; in other architectures the key says how a model was trained.
  const bool rotates = keys.boolean_or("rope.scaling.finetuned", true) || !keys.is("granite");
  if (keys.is("granitemoe") && !keys.boolean_or("rope.scaling.finetuned", true)) {
    keys.refuse("rope.scaling.finetuned", "true or absent: versions of llama.cpp differ in whether it ends RoPE here");
  }
  config.rope.assign(layers, rotates);
  const auto interval = static_cast<std::size_t>(architecture.rope_free_interval);
  for (std::size_t layer = 0; interval > 0 && layer < layers; ++layer) {
    if ((layer + 1) % interval == 0) config.rope[layer] = false;
  }
}

}  // namespace hayloft::runtime::gguf
