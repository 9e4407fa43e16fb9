#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "runtime/checkpoint/checkpoint_formats.h"
#include "runtime/checkpoint/fused.h"
#include "runtime/checkpoint/gguf/config.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime {
namespace {

using Renamed = std::pair<std::string_view, std::string_view>;  // Hugging Face's name, GGUF's

constexpr std::string_view layer_prefix = "model.layers.";
constexpr std::array<Renamed, 31> in_layer = {{
    {"input_layernorm", "attn_norm"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
}};
constexpr std::array<Renamed, 6> whole_in_layer = {{
    {"self_attn.sinks", "attn_sinks.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"layer_scalar", "layer_output_scale.weight"},
}};
// The norm behind attention is that before the MLP where there are no others; hybrids and gpt-oss name it for its
// place.
constexpr std::array<Renamed, 1> norms_before = {{{"post_attention_layernorm", "ffn_norm"}}};
constexpr std::array<Renamed, 1> norms_by_place = {{{"post_attention_layernorm", "post_attention_norm"}}};
constexpr std::array<Renamed, 3> norms_after = {{
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
}};
constexpr std::array<Renamed, 3> outside = {{
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
}};

// The head that predicts further tokens is the block behind the layers, with these beside what a layer has.
constexpr std::string_view head_layer = "mtp.layers.0.";
constexpr std::array<Renamed, 6> in_head = {{
    {"mtp.fc", "nextn.eh_proj"},
    {"mtp.pre_fc_norm_embedding", "nextn.enorm"},
    {"mtp.pre_fc_norm_hidden", "nextn.hnorm"},
    {"mtp.norm", "nextn.shared_head_norm"},
    {"mtp.embed_tokens", "nextn.embed_tokens"},
    {"mtp.shared_head.head", "nextn.shared_head_head"},
}};

template <std::size_t N>
std::string_view find_name(const std::array<Renamed, N>& names, std::string_view name) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const Renamed& pair) { return pair.first == name; });
  return found == names.end() ? std::string_view() : found->second;
}

std::string_view norm_name(std::string_view stem, const ModelConfig& config) {
  if (config.norms != Norms::before) return find_name(norms_after, stem);
  const bool by_place = config.attention_gate || config.attention_sinks;
  return by_place ? find_name(norms_by_place, stem) : find_name(norms_before, stem);
}

// "model.layers.3.mlp.up_proj.weight" to "blk.3.ffn_up.weight"; empty when GGUF has no name for it.
std::string gguf_name(std::string_view name, const ModelConfig& config) {
  if (name.starts_with(head_layer)) {
    return gguf_name(fmt::format("{}{}.{}", layer_prefix, config.layers, name.substr(head_layer.size())), config);
  }
  if (const std::string_view of_head = find_name(in_head, name.substr(0, name.rfind('.'))); !of_head.empty()) {
    return fmt::format("blk.{}.{}{}", config.layers, of_head, name.substr(name.rfind('.')));
  }
  std::string prefix;
  const bool layer = name.substr(0, layer_prefix.size()) == layer_prefix;
  if (layer) {
    name.remove_prefix(layer_prefix.size());
    const std::size_t dot = name.find('.') + 1;
    prefix = "blk." + std::string(name.substr(0, dot));
    name.remove_prefix(dot);
  }
  if (layer) {
    const std::string_view whole = find_name(whole_in_layer, name);
    if (!whole.empty()) return prefix.append(whole);
  }
  const std::size_t end = name.rfind('.');  // of ".weight" or ".bias"
  const std::string_view stem = name.substr(0, end);
  std::string_view renamed = layer ? find_name(in_layer, stem) : find_name(outside, stem);
  if (layer && renamed.empty()) renamed = norm_name(stem, config);
  return renamed.empty() ? std::string() : prefix.append(renamed).append(name.substr(end));
}

// Files leave dimensions of 1 out.
bool same_shape(std::vector<std::int64_t> found, std::vector<std::int64_t> wanted) {
  std::erase(found, 1);
  std::erase(wanted, 1);
  return found == wanted;
}

class GgufCheckpoint final : public Checkpoint {
 public:
  explicit GgufCheckpoint(const std::filesystem::path& path) : file_(path), config_(gguf::read_config(file_)) {}

  ModelConfig config() const override { return config_; }

  bool contains(std::string_view name) const override { return file_.find(own_name(name)) != nullptr; }
  std::string path() const override { return file_.path().string(); }
  const char* configuration() const override {
    return "metadata (general.architecture, and under it block_count or expert widths)";
  }

  CheckpointTensor at(const std::string& name, std::initializer_list<int> shape) override {
    if (const auto part = fused_part(name, config_); part && shape.size() == 2) {
      return take_part(*this, *part, *(shape.begin() + 1));
    }
    for (const FusedPart& place : expert_places(name, config_)) {
      if (contains(place.name)) return take_part(*this, place, columns_of(shape));
    }
    const std::string own = own_name(name);
    const gguf::Tensor* tensor = file_.find(own);
    if (!tensor) {
      fail("{}: has no tensor {}, which its metadata call for", file_.path().string(), name_of_missing(name));
    }
    if (!same_shape(tensor->shape, {shape.begin(), shape.end()})) {
      fail("{}: tensor {} has shape [{}], but the metadata call for [{}]", file_.path().string(), own,
           fmt::join(tensor->shape, ", "), fmt::join(shape, ", "));
    }
    read_.insert(own);
    int paired_heads = 0;
    if (gguf::rows_in_pairs(config_)) {
      if (own.find(".attn_q.") != std::string::npos) paired_heads = config_.query_heads;
      if (own.find(".attn_k.") != std::string::npos) paired_heads = config_.kv_heads;
    }
    return {.type = tensor->type,
            .data = tensor->data,
            .paired_heads = paired_heads,
            .negated_exponentials = own.ends_with(".ssm_a")};
  }

  std::vector<std::string> unread() const override { return names_not_read(false); }
  std::vector<std::string> of_other_parts() const override { return names_not_read(true); }

 private:
  std::string own_name(std::string_view name) const { return gguf_name(name, config_); }

  // Returns the name that files usually have for it; one matrix of an expert lies in a tensor of all experts.
  std::string name_of_missing(const std::string& name) const {
    const std::string own = own_name(name);
    const std::vector<FusedPart> places = expert_places(name, config_);
    const std::string together = places.empty() ? "" : own_name(places.back().name);
    return !own.empty() ? own : !together.empty() ? together : name;
  }

  // blk.N of a block behind the language model's.
  bool of_other_part(std::string_view name) const {
    constexpr std::string_view prefix = "blk.";
    if (!name.starts_with(prefix)) return false;
    name.remove_prefix(prefix.size());
    int block = -1;
    std::from_chars(name.data(), name.data() + name.size(), block);
    return block >= config_.layers && block < config_.layers + blocks_behind_;
  }

  std::vector<std::string> names_not_read(bool of_other_parts) const {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (read_.contains(name) || gguf::holds_rope_factors(name) || of_other_part(name) != of_other_parts) continue;
      names.push_back(name);
    }
    return names;
  }

  gguf::File file_;
  ModelConfig config_;
  int blocks_behind_ = gguf::blocks_behind(file_.metadata());
  std::set<std::string> read_;  // by their names here
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf_checkpoint(const std::filesystem::path& file) {
  return std::make_unique<GgufCheckpoint>(file);
}

}  // namespace hayloft::runtime
