#include "runtime/checkpoint/weights.h"

#include <cstring>
#include <deque>
#include <map>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {

namespace {

// The checkpoint's tensors by name, whichever shard they lie in.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory) {
    const std::filesystem::path single = directory / "model.safetensors";
    index_ = directory / "model.safetensors.index.json";
    std::error_code error;
    if (std::filesystem::exists(single, error)) {
      index_ = single;
      for (const auto& [name, tensor] : files_.try_emplace("", single).first->second.tensors()) found_[name] = &tensor;
    } else if (std::filesystem::exists(index_, error)) {
      open_shards(directory);
    } else {
      fail("{}: holds neither model.safetensors nor model.safetensors.index.json", directory.string());
    }
  }

  // Throws Error unless there is such a tensor of that shape.
  const TensorView& at(const std::string& name, std::initializer_list<int> shape) const {
    const auto tensor = found_.find(name);
    if (tensor == found_.end()) fail("{}: has no tensor {}, which config.json calls for", index_.string(), name);
    const std::vector<std::int64_t>& found = tensor->second->shape;
    if (!std::equal(found.begin(), found.end(), shape.begin(), shape.end())) {
      fail("{}: tensor {} has shape [{}], but config.json calls for [{}]", index_.string(), name,
           fmt::join(found, ", "), fmt::join(shape, ", "));
    }
    return *tensor->second;
  }

  std::string path() const { return index_.string(); }

 private:
  void open_shards(const std::filesystem::path& directory) {
    const nlohmann::json json = read_json_file(index_);
    const JsonFields fields(json, index_.string());
    const nlohmann::json* map = fields.find("weight_map");
    if (!map || !map->is_object()) fail("{}: weight_map must be an object of tensor and file names", index_.string());
    for (const auto& [name, file] : map->items()) {
      const std::string shard = JsonFields(*map, index_.string() + ": weight_map").text(name.c_str());
      // A shard lies beside its index: nothing in a downloaded file may reach elsewhere.
      if (shard.empty() || shard == "." || shard == ".." || shard.find_first_of("/\\\0", 0, 3) != std::string::npos) {
        fail("{}: weight_map puts tensor {} in {}, which is not a file name in this folder", index_.string(),
             printable(name), printable(shard));
      }
      auto opened = files_.find(shard);
      if (opened == files_.end()) opened = files_.try_emplace(shard, directory / shard).first;
      found_[name] = &opened->second.at(name);
    }
  }

  std::filesystem::path index_;  // the file to name in messages
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, const TensorView*> found_;
};

std::uint64_t matrix_bytes(const gpu::Matrix& matrix) {
  return static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols) *
         static_cast<std::uint64_t>(gpu::bytes_of(matrix.type));
}

// Takes tensors from the checkpoint to the device, or only counts their bytes when there is no device. Without a
// checkpoint, too, it counts what one with matrices of `type` would hold.
class Uploader {
 public:
  Uploader(const Checkpoint* checkpoint, gpu::DType type, gpu::Backend* backend, Weights& weights)
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

  const Checkpoint* checkpoint_;
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

// `checkpoint` may be null when there is no backend; `type` is that of its matrices then.
Weights take_weights(const Checkpoint* checkpoint, gpu::DType type, const ModelConfig& config, gpu::Backend* backend) {
  Weights weights;
  Uploader uploader(checkpoint, type, backend, weights);
  weights.embedding = uploader.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size);
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(layer_weights(fmt::format("model.layers.{}.", i), config, uploader));
  }
  weights.final_norm = uploader.vector("model.norm.weight", config.hidden_size);
  weights.output = config.tied_embeddings ? weights.embedding
                                          : uploader.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  weights.inverse_frequency = uploader.values(config.inverse_frequency);
  uploader.finish();
  return weights;
}

}  // namespace

Weights load_weights(const std::filesystem::path& directory, const ModelConfig& config, gpu::Backend& backend) {
  const Checkpoint checkpoint(directory);
  return take_weights(&checkpoint, {}, config, &backend);
}

std::uint64_t weight_bytes(const std::filesystem::path& directory) {
  return weight_sizes(directory).bytes;
}

WeightSizes weight_sizes(const std::filesystem::path& directory) {
  const Checkpoint checkpoint(directory);
  return sizes_of(take_weights(&checkpoint, {}, read_config(directory), nullptr));
}

WeightSizes weight_sizes(const ModelConfig& config, gpu::DType type) {
  return sizes_of(take_weights(nullptr, type, config, nullptr));
}

}  // namespace hayloft::runtime
