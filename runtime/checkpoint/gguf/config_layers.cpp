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
  if (keys.is_list(name) || keys.is("gemma4")) {
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

// Returns what a key says of the layers of one kind, which are to be alike: a number, or a list of one for each block.
int same_in_kind(const Keys& keys, const char* name, LayerKind kind, const ModelConfig& config) {
  if (!keys.is_list(name)) return static_cast<int>(keys.integer(name, 1, most_heads_of_layer));
  const std::vector<std::int64_t> list = keys.integers(name);
  if (list.size() != config.sliding_window.size()) {
    keys.refuse(name, fmt::format("a number, or a list of {}, one for each block", config.layers));
  }
  std::int64_t found = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    if (config.kind(layer) != kind) continue;
    const std::int64_t own = list[static_cast<std::size_t>(layer)];
    if (found == 0) found = own;
    if (own != found || own < 1 || own > most_heads_of_layer) {
      fail("{}: {}.{} of layer {} is {}, that of an earlier layer of its kind {}; layers of a kind are alike here",
           keys.file(), keys.architecture(), name, layer, own, found);
    }
  }
  return static_cast<int>(found);
}

// Returns the components of heads, of keys and of values alike.
int components_of(const Keys& keys, const char* of_keys, const char* of_values) {
  const auto d = static_cast<int>(keys.integer(of_keys, 8, offload::most_head_dim));
  if (d % 8 != 0) keys.refuse(of_keys, "a multiple of 8");
  if (keys.integer_or(of_values, d, 1, most_channels) != d) {
    keys.refuse(of_values, fmt::format("that of the keys, {}", d));
  }
  return d;
}

}  // namespace

void read_gguf_heads_by_kind(const Keys& keys, const Tensors& tensors, ModelConfig& config) {
  constexpr const char* counts = "attention.head_count_kv";
  if (config.global_layers() == 0) {
    fail("{}: none of {} layers attends to all tokens before; at least one must", keys.file(), config.layers);
  }
  config.kv_heads = same_in_kind(keys, counts, LayerKind::global, config);
  config.head_dim = components_of(keys, "attention.key_length", "attention.value_length");
  config.sliding_kv_heads = same_in_kind(keys, counts, LayerKind::sliding, config);
  config.sliding_head_dim = components_of(keys, "attention.key_length_swa", "attention.value_length_swa");
  for (const int heads : {config.kv_heads, config.sliding_kv_heads}) {
    if (heads > 0 && config.query_heads % heads != 0) {
      keys.refuse(counts, fmt::format("of divisors of {}, the query heads", config.query_heads));
    }
  }
  int global = 0;
  while (config.kind(global) != LayerKind::global) ++global;
  config.keys_as_values = !tensors.contains(fmt::format("blk.{}.attn_v.weight", global));
}

void read_gguf_layers(const Keys& keys, ModelConfig& config) {
  const GgufArchitecture& architecture = *find_gguf_architecture(keys.architecture());
  const auto layers = static_cast<std::size_t>(config.layers);
  std::int64_t window = keys.integer_or("attention.sliding_window", 0, 0, most_positions);
  if (keys.is("gpt-oss") || keys.is("gemma4")) window = keys.integer("attention.sliding_window", 1, most_positions);
  if (keys.is("phi3") && window >= config.max_positions) window = 0;  // it hides nothing
  config.sliding_window.assign(layers, window);
  read_window_pattern(keys, architecture.window_pattern, config);
  if (architecture.window_pattern == 0 && !keys.is("gemma4") && config.count(LayerKind::sliding) > 0) {
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
