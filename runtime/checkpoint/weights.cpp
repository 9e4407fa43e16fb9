#include "runtime/checkpoint/weights.h"

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <string_view>

#include "offload/error.h"
#include "runtime/checkpoint/checkpoint.h"

namespace hayloft::runtime {

namespace {

std::uint64_t matrix_bytes(const gpu::Matrix& matrix) {
  return static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols) *
         static_cast<std::uint64_t>(gpu::bytes_of(matrix.type));
}

// Takes tensors from the checkpoint to the device, or only counts their bytes when there is no device. Without a
// checkpoint, too, it counts what one with matrices of `type` would hold.
class Uploader {
 public:
  Uploader(Checkpoint* checkpoint, gpu::DType type, gpu::Backend* backend, Weights& weights)
      : checkpoint_(checkpoint), type_(type), backend_(backend), weights_(weights) {
    if (backend_) stream_ = backend_->stream();
  }

  // Whatever was handed over has reached the device.
  void finish() {
    if (backend_) backend_->synchronize(stream_);
    staged_.clear();
  }

  gpu::Matrix matrix(const std::string& name, int rows, int cols) {
    if (!checkpoint_) {
      weights_.bytes += matrix_bytes({nullptr, type_, rows, cols});
      return {nullptr, type_, rows, cols};
    }
    const TensorView& tensor = checkpoint_->at(name, {rows, cols});
    gpu::DType type = gpu::DType::f32;
    if (tensor.dtype == "F16") {
      type = gpu::DType::f16;
    } else if (tensor.dtype == "BF16") {
      type = gpu::DType::bf16;
    } else if (tensor.dtype != "F32") {
      fail("{}: tensor {} has dtype {}; it must be F32, F16 or BF16", checkpoint_->path(), name, tensor.dtype);
    }
    void* const device = upload(tensor.data.data(), tensor.data.size());
    if (backend_) type = backend_->convert_weights(device, type, std::int64_t{rows} * cols, stream_);
    return {device, type, rows, cols};
  }

  const float* vector(const std::string& name, int n) {
    if (!checkpoint_) return values(std::vector<float>(static_cast<std::size_t>(n)));
    const TensorView& tensor = checkpoint_->at(name, {n});
    return values(to_f32(tensor, name + " of " + checkpoint_->path()));
  }

  const float* values(std::vector<float> x) {
    staged_.push_back(std::move(x));
    return static_cast<const float*>(upload(staged_.back().data(), staged_.back().size() * sizeof(float)));
  }

 private:
  void* upload(const void* host, std::uint64_t bytes) {
    weights_.bytes += bytes;
    if (!backend_) return nullptr;
    weights_.buffers.push_back(backend_->allocate(bytes, stream_));
    void* device = weights_.buffers.back().as<void>();
    backend_->to_device(device, host, bytes, stream_);
    return device;
  }

  Checkpoint* checkpoint_;
  gpu::DType type_;
  gpu::Backend* backend_;
  Weights& weights_;
  gpu::Stream stream_;
  std::deque<std::vector<float>> staged_;  // copies to the device may still read them until finish()
};

WeightSizes sizes_of(const Weights& weights) {
  WeightSizes sizes{weights.bytes, matrix_bytes(weights.output)};
  for (const LayerWeights& w : weights.layers) {
    for (const gpu::Matrix& matrix : {w.q, w.k, w.v, w.o, w.gate, w.up, w.down}) {
      sizes.bytes_per_step += matrix_bytes(matrix);
    }
  }
  return sizes;
}

LayerWeights layer_weights(const std::string& prefix, const ModelConfig& config, Uploader& uploader) {
  const int hidden = config.hidden_size;
  const int inner = config.intermediate_size;
  const int q_width = config.query_heads * config.head_dim;
  const int kv_width = config.kv_heads * config.head_dim;
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";

  LayerWeights layer;
  layer.attention_norm = uploader.vector(prefix + "input_layernorm.weight", hidden);
  layer.q = uploader.matrix(attention + "q_proj.weight", q_width, hidden);
  layer.k = uploader.matrix(attention + "k_proj.weight", kv_width, hidden);
  layer.v = uploader.matrix(attention + "v_proj.weight", kv_width, hidden);
  layer.o = uploader.matrix(attention + "o_proj.weight", hidden, q_width);
  if (config.qkv_bias) {
    layer.q_bias = uploader.vector(attention + "q_proj.bias", q_width);
    layer.k_bias = uploader.vector(attention + "k_proj.bias", kv_width);
    layer.v_bias = uploader.vector(attention + "v_proj.bias", kv_width);
  }
  if (config.output_bias) layer.o_bias = uploader.vector(attention + "o_proj.bias", hidden);
  if (config.qk_norm) {
    layer.q_norm = uploader.vector(attention + "q_norm.weight", config.head_dim);
    layer.k_norm = uploader.vector(attention + "k_norm.weight", config.head_dim);
  }

  layer.mlp_norm = uploader.vector(prefix + "post_attention_layernorm.weight", hidden);
  layer.gate = uploader.matrix(mlp + "gate_proj.weight", inner, hidden);
  layer.up = uploader.matrix(mlp + "up_proj.weight", inner, hidden);
  layer.down = uploader.matrix(mlp + "down_proj.weight", hidden, inner);
  if (config.mlp_bias) {
    layer.gate_bias = uploader.vector(mlp + "gate_proj.bias", inner);
    layer.up_bias = uploader.vector(mlp + "up_proj.bias", inner);
    layer.down_bias = uploader.vector(mlp + "down_proj.bias", hidden);
  }
  return layer;
}

constexpr const char* embedding_name = "model.embed_tokens.weight";
constexpr const char* output_name = "lm_head.weight";

// The name that the embedding's tensor has: a tied model may be saved with the output alone.
const char* embedding_tensor(const Checkpoint* checkpoint, const ModelConfig& config) {
  const bool output_alone = checkpoint && config.tied_embeddings && !checkpoint->contains(embedding_name) &&
                            checkpoint->contains(output_name);
  return output_alone ? output_name : embedding_name;
}

// Whether the output is a matrix of its own. A checkpoint that holds two different ones is followed, whatever its
// configuration says, as transformers does.
bool own_output(Checkpoint* checkpoint, const ModelConfig& config, Weights& weights) {
  if (!config.tied_embeddings) return true;
  if (!checkpoint || !checkpoint->contains(embedding_name) || !checkpoint->contains(output_name)) return false;
  const auto tensor = [&](const char* name) -> const TensorView& {
    return checkpoint->at(name, {config.vocab_size, config.hidden_size});
  };
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

// A tensor that nothing reads is a part of the model that would be left out of every answer.
void refuse_unread(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::vector<std::string> names = checkpoint.unread();
  std::erase_if(names, is_buffer);
  if (names.empty()) return;
  constexpr std::size_t listed = 3;
  const std::size_t most = std::min(names.size(), listed);
  std::string list =
      fmt::format("{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(most), ", "));
  if (names.size() > most) list += fmt::format(" and {} more", names.size() - most);
  fail(
      "{}: holds {} tensor{} that a model of type {} does not have ({}): config.json and the weights do not belong "
      "together, or its options (model_type, num_hidden_layers, attention_bias, mlp_bias) are wrong",
      checkpoint.path(), names.size(), names.size() == 1 ? "" : "s", config.architecture, list);
}

// `checkpoint` may be null when there is no backend; `type` is that of its matrices then.
Weights take_weights(Checkpoint* checkpoint, gpu::DType type, const ModelConfig& config, gpu::Backend* backend) {
  Weights weights;
  Uploader uploader(checkpoint, type, backend, weights);
  weights.embedding = uploader.matrix(embedding_tensor(checkpoint, config), config.vocab_size, config.hidden_size);
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(layer_weights(fmt::format("model.layers.{}.", i), config, uploader));
  }
  weights.final_norm = uploader.vector("model.norm.weight", config.hidden_size);
  weights.output = own_output(checkpoint, config, weights)
                       ? uploader.matrix(output_name, config.vocab_size, config.hidden_size)
                       : weights.embedding;
  weights.inverse_frequency = uploader.values(config.inverse_frequency);
  uploader.finish();
  if (checkpoint) refuse_unread(*checkpoint, config);
  return weights;
}

}  // namespace

Weights load_weights(const std::filesystem::path& directory, const ModelConfig& config, gpu::Backend& backend) {
  Checkpoint checkpoint(directory);
  return take_weights(&checkpoint, {}, config, &backend);
}

std::uint64_t weight_bytes(const std::filesystem::path& directory) {
  return weight_sizes(directory).bytes;
}

WeightSizes weight_sizes(const std::filesystem::path& directory) {
  Checkpoint checkpoint(directory);
  return sizes_of(take_weights(&checkpoint, {}, read_config(directory), nullptr));
}

WeightSizes weight_sizes(const ModelConfig& config, gpu::DType type) {
  return sizes_of(take_weights(nullptr, type, config, nullptr));
}

}  // namespace hayloft::runtime
