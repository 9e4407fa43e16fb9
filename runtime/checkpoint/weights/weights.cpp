#include "runtime/checkpoint/weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/draft_head.h"
#include "runtime/checkpoint/gguf/pack.h"
#include "runtime/checkpoint/weights/expert_placement.h"
#include "runtime/checkpoint/weights/upload.h"

namespace hayloft::runtime {

std::uint64_t WeightSizes::bytes_per_pass(int T) const {
  const double further = std::min<double>(T, tokens_of_all_experts) - 1;
  return bytes_per_step + static_cast<std::uint64_t>(further * static_cast<double>(expert_bytes_per_step));
}

WeightSizes weight_sizes(const Weights& weights, const ModelConfig& config) {
  WeightSizes sizes{weights.bytes, weights.host_bytes};
  sizes.mixture_bytes = weights.mixture_bytes;
  const auto multiplied = [&](const gpu::Matrix& matrix, double share_read, bool in_mixture = false) {
    const auto elements = static_cast<double>(matrix.rows) * matrix.cols;
    const auto bytes = static_cast<std::uint64_t>(share_read * static_cast<double>(gpu::bytes_of(matrix)));
    const auto read = static_cast<std::uint64_t>(share_read * elements);
    sizes.bytes_per_step += bytes;
    sizes.weights_per_step[matrix.packing.bits] += read;
    if (!in_mixture) return bytes;
    sizes.mixture_bytes_per_step += bytes;
    sizes.mixture_weights_per_step[matrix.packing.bits] += read;
    return bytes;
  };
  multiplied(weights.output, 1);
  // A token goes through some of the experts.
  const Experts& experts = config.experts;
  sizes.experts = experts.count;
  if (experts.count > 0) sizes.tokens_of_all_experts = static_cast<double>(experts.count) / experts.used;
  for (const LayerWeights& w : weights.layers) {
    for (const gpu::Matrix& matrix : {w.q, w.k, w.v, w.o, w.output_gate, w.delta.inputs, w.delta.step, w.delta.rate}) {
      multiplied(matrix, 1);
    }
    for (const gpu::Matrix& matrix : {w.gate, w.up, w.down, w.experts.router, w.experts.shared_gate}) {
      multiplied(matrix, 1);
    }
    for (const Expert& expert : w.experts.each) {
      for (const gpu::Matrix& matrix : {expert.gate, expert.up, expert.down}) {
        sizes.expert_bytes_per_step += multiplied(matrix, 1 / sizes.tokens_of_all_experts, true);
      }
      sizes.slot_bytes = std::max(sizes.slot_bytes, bytes_of(expert));
    }
    if (!w.experts.each.empty()) ++sizes.mixture_layers;
  }
  return sizes;
}

WeightSizes head_sizes(const Weights& weights, const ModelConfig& config) {
  const HeadWeights& head = *weights.head;
  Weights layer;
  layer.output = weights.output;
  layer.layers = {head.layer};
  WeightSizes sizes = weight_sizes(layer, draft_head_config(config));
  sizes.bytes = head.bytes;
  sizes.bytes_per_step += gpu::bytes_of(head.join);
  sizes.weights_per_step[head.join.packing.bits] +=
      static_cast<std::uint64_t>(head.join.rows) * static_cast<std::uint64_t>(head.join.cols);
  return sizes;
}

namespace {

void take_attention(const std::string& prefix, int index, const ModelConfig& config, WeightUpload& upload,
                    LayerWeights& layer) {
  const int hidden = config.hidden_size;
  const LayerHeads heads = config.heads(index);
  const int q_width = config.query_heads * heads.dim;
  const int kv_width = static_cast<int>(heads.width());
  const bool keys_as_values = config.keys_as_values && config.kind(index) == LayerKind::global;
  const std::string attention = prefix + "self_attn.";
  if (config.attention_gate) {
    const auto half = [&](int which) {
      return upload.half_of_heads(attention + "q_proj.weight", config.query_heads, heads.dim, hidden, which);
    };
    layer.q = half(0);
    layer.output_gate = half(1);
  } else {
    layer.q = upload.matrix(attention + "q_proj.weight", q_width, hidden);
  }
  layer.k = upload.matrix(attention + "k_proj.weight", kv_width, hidden);
  if (!keys_as_values) layer.v = upload.matrix(attention + "v_proj.weight", kv_width, hidden);
  layer.o = upload.matrix(attention + "o_proj.weight", hidden, q_width);
  if (config.qkv_bias) {
    layer.q_bias = upload.vector(attention + "q_proj.bias", q_width);
    layer.k_bias = upload.vector(attention + "k_proj.bias", kv_width);
    if (!keys_as_values) layer.v_bias = upload.vector(attention + "v_proj.bias", kv_width);
  }
  if (config.output_bias) layer.o_bias = upload.vector(attention + "o_proj.bias", hidden);
  if (config.attention_sinks) layer.sinks = upload.vector(attention + "sinks", config.query_heads);
  if (config.qk_norm) {
    layer.q_norm = upload.norm(attention + "q_norm.weight", config.qk_norm_whole ? q_width : heads.dim, config);
    layer.k_norm = upload.norm(attention + "k_norm.weight", config.qk_norm_whole ? kv_width : heads.dim, config);
  }
  if (config.value_norm) layer.v_norm = upload.values(std::vector<float>(static_cast<std::size_t>(heads.dim), 1.0f));
}

void take_delta(const std::string& prefix, const ModelConfig& config, WeightUpload& upload, LayerWeights& layer) {
  const int hidden = config.hidden_size;
  const gpu::DeltaShape& shape = config.delta;
  const int channels = static_cast<int>(shape.channels()), values = static_cast<int>(shape.values());
  const std::string part = prefix + "linear_attn.";
  DeltaWeights& delta = layer.delta;
  delta.inputs = upload.matrix(part + "in_proj_qkv.weight", channels, hidden);
  delta.step = upload.gate(part + "in_proj_a.weight", shape.value_heads, hidden);
  delta.rate = upload.gate(part + "in_proj_b.weight", shape.value_heads, hidden);
  layer.output_gate = upload.matrix(part + "in_proj_z.weight", values, hidden);
  layer.o = upload.matrix(part + "out_proj.weight", hidden, values);
  std::vector<float> decay = upload.numbers(part + "A_log", {shape.value_heads});
  for (float& each : decay) each = std::exp(each);
  delta.layer.shape = shape;
  delta.layer.convolution = upload.values(upload.numbers(part + "conv1d.weight", {channels, 1, shape.kernel}));
  delta.layer.decay = upload.values(std::move(decay));
  delta.layer.step_bias = upload.vector(part + "dt_bias", shape.value_heads);
  delta.layer.norm = upload.vector(part + "norm.weight", shape.value_dim);
  delta.layer.eps = config.rms_norm_eps;
}

// Takes the MLP beside experts, and the norms and scales that come with it.
void take_mlp_beside(const std::string& mlp, const ModelConfig& config, WeightUpload& upload, LayerWeights& layer) {
  const int hidden = config.hidden_size, inner = config.experts.beside_inner;
  const std::string prefix = mlp.substr(0, mlp.size() - std::string_view("mlp.").size());
  layer.gate = upload.matrix(mlp + "gate_proj.weight", inner, hidden);
  layer.up = upload.matrix(mlp + "up_proj.weight", inner, hidden);
  layer.down = upload.matrix(mlp + "down_proj.weight", hidden, inner);
  ExpertWeights& experts = layer.experts;
  experts.beside_norm = upload.norm(prefix + "post_feedforward_layernorm_1.weight", hidden, config);
  experts.norm = upload.norm(prefix + "pre_feedforward_layernorm_2.weight", hidden, config);
  experts.mixed_norm = upload.norm(prefix + "post_feedforward_layernorm_2.weight", hidden, config);
  experts.scales = upload.numbers(prefix + "router.per_expert_scale", {config.experts.count});
  std::vector<float> router = upload.numbers(prefix + "router.scale", {hidden});
  for (float& each : router) each /= std::sqrt(static_cast<float>(hidden));
  experts.router_norm = upload.values(std::move(router));
}

void take_experts(const std::string& mlp, const ModelConfig& config, WeightUpload& upload, LayerWeights& layer) {
  const int hidden = config.hidden_size;
  const Experts& experts = config.experts;
  layer.experts.router = upload.unquantised(mlp + "gate.weight", experts.count, hidden);
  if (experts.biases) layer.experts.router_bias = upload.vector(mlp + "gate.bias", experts.count);
  for (int i = 0; i < experts.count; ++i) {
    const WeightUpload::OfMixture of_mixture(upload);
    const std::string name = fmt::format("{}experts.{}.", mlp, i);
    Expert& expert = layer.experts.each.emplace_back();
    expert.gate = upload.matrix(name + "gate_proj.weight", experts.inner, hidden);
    expert.up = upload.matrix(name + "up_proj.weight", experts.inner, hidden);
    expert.down = upload.matrix(name + "down_proj.weight", hidden, experts.inner);
    if (!experts.biases) continue;
    expert.gate_bias = upload.vector(name + "gate_proj.bias", experts.inner);
    expert.up_bias = upload.vector(name + "up_proj.bias", experts.inner);
    expert.down_bias = upload.vector(name + "down_proj.bias", hidden);
  }
  if (experts.beside_inner > 0) take_mlp_beside(mlp, config, upload, layer);
  if (experts.shared_inner == 0) return;
  const std::string shared = mlp + "shared_expert.";
  layer.experts.shared_gate = upload.unquantised(mlp + "shared_expert_gate.weight", 1, hidden);
  layer.gate = upload.matrix(shared + "gate_proj.weight", experts.shared_inner, hidden);
  layer.up = upload.matrix(shared + "up_proj.weight", experts.shared_inner, hidden);
  layer.down = upload.matrix(shared + "down_proj.weight", hidden, experts.shared_inner);
}

// `prefix`: of its tensors' names; `index`: which of the configuration's layers it is.
LayerWeights layer_weights(const std::string& prefix, int index, const ModelConfig& config, WeightUpload& upload) {
  const int hidden = config.hidden_size;
  const std::string mlp = prefix + "mlp.";

  LayerWeights layer;
  const auto norm = [&](const std::string& name, int n) { return upload.norm(name, n, config); };
  if (config.norms != Norms::after) layer.attention_norm = norm(prefix + "input_layernorm.weight", hidden);
  if (config.kind(index) == LayerKind::recurrent) {
    take_delta(prefix, config, upload, layer);
  } else {
    take_attention(prefix, index, config, upload, layer);
  }

  if (config.norms == Norms::before) {
    layer.mlp_norm = norm(prefix + "post_attention_layernorm.weight", hidden);
  } else {
    layer.attended_norm = norm(prefix + "post_attention_layernorm.weight", hidden);
    if (config.norms == Norms::both) layer.mlp_norm = norm(prefix + "pre_feedforward_layernorm.weight", hidden);
    layer.output_norm = norm(prefix + "post_feedforward_layernorm.weight", hidden);
  }
  if (config.layer_scales) layer.scale = upload.numbers(prefix + "layer_scalar", {1}).front();
  if (config.experts.in(index)) {
    take_experts(mlp, config, upload, layer);
    return layer;
  }
  const int inner = config.experts.count > 0 ? config.experts.dense_inner : config.intermediate_size;
  layer.gate = upload.matrix(mlp + "gate_proj.weight", inner, hidden);
  layer.up = upload.matrix(mlp + "up_proj.weight", inner, hidden);
  layer.down = upload.matrix(mlp + "down_proj.weight", hidden, inner);
  if (config.mlp_bias) {
    layer.gate_bias = upload.vector(mlp + "gate_proj.bias", inner);
    layer.up_bias = upload.vector(mlp + "up_proj.bias", inner);
    layer.down_bias = upload.vector(mlp + "down_proj.bias", hidden);
  }
  return layer;
}

HeadWeights head_weights(const Checkpoint* checkpoint, const ModelConfig& config, WeightUpload& upload) {
  const int hidden = config.hidden_size;
  HeadWeights head;
  head.join = upload.matrix("mtp.fc.weight", hidden, 2 * hidden);
  head.embedding_norm = upload.norm("mtp.pre_fc_norm_embedding.weight", hidden, config);
  head.state_norm = upload.norm("mtp.pre_fc_norm_hidden.weight", hidden, config);
  // A file may leave out the norm that is the model's own.
  const bool own_norm = checkpoint && checkpoint->contains("mtp.norm.weight");
  const char* const norm = own_norm ? "mtp.norm.weight" : "model.norm.weight";
  head.final_norm = upload.norm(norm, hidden, config);
  head.layer = layer_weights("mtp.layers.0.", 0, draft_head_config(config), upload);
  return head;
}

constexpr const char* embedding_name = "model.embed_tokens.weight";
constexpr const char* output_name = "lm_head.weight";

// The name that the embedding's tensor has: a tied model may be saved with the output alone.
const char* embedding_tensor(const Checkpoint* checkpoint, const ModelConfig& config) {
  const bool output_alone = checkpoint && config.tied_embeddings && !checkpoint->contains(embedding_name) &&
                            checkpoint->contains(output_name);
  return output_alone ? output_name : embedding_name;
}

// Returns whether the output is a matrix of its own. A checkpoint that holds two different ones is followed, whatever
// its configuration says, as transformers does.
bool own_output(Checkpoint* checkpoint, const ModelConfig& config, Weights& weights) {
  if (!config.tied_embeddings) return true;
  if (!checkpoint || !checkpoint->contains(embedding_name) || !checkpoint->contains(output_name)) return false;
  const auto tensor = [&](const char* name) { return checkpoint->at(name, {config.vocab_size, config.hidden_size}); };
  if (same_values(tensor(embedding_name), tensor(output_name))) return false;
  weights.notes.push_back(
      fmt::format("{}: {} differs from {}, so the two are not tied, although config.json says tie_word_embeddings: "
                  "true; set it to false there",
                  checkpoint->path(), output_name, embedding_name));
  return true;
}

// Buffers that older versions of transformers saved with the weights; every model computes its own.
bool is_buffer(std::string_view name) {
  constexpr std::string_view endings[] = {"rotary_emb.inv_freq", "position_ids", ".masked_bias", ".attn.bias"};
  return std::any_of(std::begin(endings), std::end(endings), [&](auto ending) { return name.ends_with(ending); });
}

// One line about what has been left out, by the beginnings of its names.
void say_skipped(const Checkpoint& checkpoint, Weights& weights) {
  std::map<std::string, int> parts;
  for (const std::string& name : checkpoint.of_other_parts()) {
    const std::size_t first = name.find('.');
    const std::size_t second =
        name.starts_with("model.") || name.starts_with("blk.") ? name.find('.', first + 1) : first;
    ++parts[name.substr(0, second)];
  }
  for (const auto& [part, tensors] : parts) {
    const bool head = part == "mtp" || part.starts_with("blk.");
    weights.skipped.push_back(fmt::format(
        "{}: the {} tensors of {} are left out: they {}", checkpoint.path(), tensors, part,
        head ? "predict further tokens, which --exact --draft mtp takes" : "are not of the language model"));
  }
}

// A tensor that nothing reads is a part of the model that would be left out of every answer.
void refuse_unread(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<std::string> names = checkpoint.unread();
  std::erase_if(names, is_buffer);
  if (names.empty()) return;
  constexpr std::size_t listed = 3;
  const std::size_t most = std::min(names.size(), listed);
  std::string list;
  for (std::size_t i = 0; i < most; ++i) list += (i > 0 ? ", " : "") + printable(names[i]);
  if (names.size() > most) list += fmt::format(" and {} more", names.size() - most);
  fail(
      "{}: holds {} tensor{} that a model of type {} does not have ({}): configuration and weights do not belong "
      "together, or its {} are wrong",
      checkpoint.path(), names.size(), names.size() == 1 ? "" : "s", config.architecture, list,
      checkpoint.configuration());
}

// `checkpoint` may be null when there is no backend; `type` is that of its matrices then.
Weights take_weights(Checkpoint* checkpoint, WeightForm form, gpu::DType type, const ModelConfig& config,
                     gpu::Backend* backend, const std::optional<gpu::Packing>& packing = std::nullopt,
                     bool experts_on_host = false, bool head = false) {
  if (head && checkpoint) require_draft_head(*checkpoint, config);
  Weights weights;
  WeightUpload upload(checkpoint, form, type, backend, weights, packing, experts_on_host);
  const bool tied = !own_output(checkpoint, config, weights);
  const char* const table = embedding_tensor(checkpoint, config);
  weights.embedding = tied ? upload.matrix(table, config.vocab_size, config.hidden_size)
                           : upload.table(table, config.vocab_size, config.hidden_size);
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(layer_weights(fmt::format("model.layers.{}.", i), i, config, upload));
  }
  weights.final_norm = upload.norm("model.norm.weight", config.hidden_size, config);
  weights.output = tied ? weights.embedding : upload.matrix(output_name, config.vocab_size, config.hidden_size);
  weights.inverse_frequency = upload.values(config.global_table.inverse_frequency);
  if (!config.local_table.inverse_frequency.empty()) {
    weights.local_inverse_frequency = upload.values(config.local_table.inverse_frequency);
  }
  upload.finish();
  if (head) {
    const std::uint64_t of_layers = weights.mixture_bytes, of_model = weights.bytes;
    WeightUpload on_device(checkpoint, form, type, backend, weights, packing);
    weights.head = head_weights(checkpoint, config, on_device);
    on_device.finish();
    weights.mixture_bytes = of_layers;
    weights.head->bytes = weights.bytes - of_model;
  }
  if (checkpoint) {
    refuse_unread(*checkpoint, config);
    say_skipped(*checkpoint, weights);
  }
  return weights;
}

}  // namespace

const char* name(WeightForm form) {
  constexpr const char* names[] = {"stored", "f16", "q8", "q4"};
  return names[static_cast<std::size_t>(form)];
}

Weights load_weights(Checkpoint& checkpoint, const ModelConfig& config, gpu::Backend& backend, WeightForm form,
                     bool experts_on_host, bool head) {
  Weights weights = take_weights(&checkpoint, form, {}, config, &backend, {}, experts_on_host, head);
  weights.notes.insert(weights.notes.begin(), config.notes.begin(), config.notes.end());
  offload::check_mapped_files();
  return weights;
}

namespace {

// Returns the weights of a model that is not there.
Weights counted(const ModelConfig& config, gpu::DType type, WeightForm form, bool head) {
  return take_weights(nullptr, form, type, config, nullptr, {}, false, head);
}
Weights counted(const ModelConfig& config, gguf::TensorType type, bool head) {
  const gpu::DType plain = type == gguf::TensorType::f32 ? gpu::DType::f32 : gpu::DType::f16;
  return take_weights(nullptr, WeightForm::stored, plain, config, nullptr, gguf::packing_of(type), false, head);
}

}  // namespace

WeightSizes weight_sizes(Checkpoint& checkpoint, WeightForm form, bool head) {
  const ModelConfig config = checkpoint.config();
  return weight_sizes(take_weights(&checkpoint, form, {}, config, nullptr, {}, false, head), config);
}

WeightSizes weight_sizes(const ModelConfig& config, gpu::DType type, WeightForm form) {
  return weight_sizes(counted(config, type, form, false), config);
}

WeightSizes weight_sizes(const ModelConfig& config, gguf::TensorType type) {
  return weight_sizes(counted(config, type, false), config);
}

std::optional<WeightSizes> head_sizes(Checkpoint& checkpoint, WeightForm form) {
  const ModelConfig config = checkpoint.config();
  if (!computes_draft_head(checkpoint, config)) return std::nullopt;
  return head_sizes(take_weights(&checkpoint, form, {}, config, nullptr, {}, false, true), config);
}

std::optional<WeightSizes> head_sizes(const ModelConfig& config, gpu::DType type, WeightForm form) {
  if (!says_draft_head(config)) return std::nullopt;
  return head_sizes(counted(config, type, form, true), config);
}

std::optional<WeightSizes> head_sizes(const ModelConfig& config, gguf::TensorType type) {
  if (!says_draft_head(config)) return std::nullopt;
  return head_sizes(counted(config, type, true), config);
}

}  // namespace hayloft::runtime
