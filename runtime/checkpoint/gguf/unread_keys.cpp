#include <algorithm>
#include <array>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/gguf/config_parts.h"

namespace hayloft::runtime::gguf {
namespace {

// Keys that say nothing about what a decoder computes of a text: sizes that the tensors say too, how a model was made,
// sections of a position that has three parts where a picture is seen, and what embeddings are pooled by.
constexpr std::array<std::string_view, 8> without_effect = {
    "vocab_size",   "rope.dimension_sections", "tensor_data_layout",           "attention.layer_norm_epsilon",
    "pooling_type", "expert_group_count",      "rope.scaling.yarn_ext_factor", "expert_group_used_count"};

// Refuses a size of layers that slide which is not that of the others.
void refuse_other_size(const Keys& keys, const char* name, int size) {
  if (keys.integer_or(name, size, 0, most_channels) != size) {
    keys.refuse(name, fmt::format("that of layers that do not slide, {}", size));
  }
}

}  // namespace

void look_at_unread_keys(const Keys& keys, ModelConfig& config) {
  if (!keys.boolean_or("attention.causal", true)) {
    keys.refuse("attention.causal", "true for a model that writes text");
  }
  if (config.count(LayerKind::sliding) > 0 && !keys.is("gemma4")) {
    refuse_other_size(keys, "attention.key_length_swa", config.head_dim);
    refuse_other_size(keys, "attention.value_length_swa", config.head_dim);
    refuse_other_size(keys, "rope.dimension_count_swa", config.global_rope.dimensions);
  }
  if (keys.is("granite") && keys.contains("deepstack_mapping")) {
    const std::vector<std::int64_t> streams = keys.integers("deepstack_mapping");
    if (std::ranges::any_of(streams, [](std::int64_t stream) { return stream >= 0; })) {
      keys.refuse("deepstack_mapping", "-1 for every layer: a model that sees is not supported");
    }
  }
  std::string names;
  const std::vector<std::string> unread = keys.unread();
  const bool one_base = keys.positive_or("rope.freq_base_swa", config.global_rope.base) == config.global_rope.base;
  if (!one_base && keys.is("gpt-oss")) {
    keys.refuse("rope.freq_base_swa", fmt::format("{}, as of layers that do not slide", config.global_rope.base));
  }
  for (const std::string& name : unread) {
    if (name == "rope.freq_base_swa" && one_base) continue;
    if (std::ranges::find(without_effect, name) != without_effect.end() || keys.is_zero(name)) continue;
    names += (names.empty() ? "" : ", ") + printable(name);
  }
  if (names.empty()) return;
  config.notes.push_back(
      fmt::format("{}: the architecture {} takes no notice of: {}", keys.file(), keys.architecture(), names));
}

}  // namespace hayloft::runtime::gguf
