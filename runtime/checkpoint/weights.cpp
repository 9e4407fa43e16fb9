#include "runtime/checkpoint/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <string_view>

#include "offload/error.h"
#include "offload/half.h"
#include "offload/host/mapped_file.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/gguf/pack.h"
#include "runtime/checkpoint/quantise.h"

namespace hayloft::runtime {

namespace {

// Where a row of a matrix lies in a checkpoint that may have the components of heads in pairs.
std::int64_t stored_row(const CheckpointTensor& tensor, std::int64_t rows, std::int64_t row) {
  if (tensor.paired_heads == 0) return row;
  const std::int64_t d = rows / tensor.paired_heads;
  const std::int64_t i = row % d;
  return row - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
}

// All rows in their order.
std::vector<std::byte> unpaired(const CheckpointTensor& tensor, std::int64_t rows) {
  std::vector<std::byte> out(tensor.data.size());
  const std::size_t row_bytes = tensor.data.size() / static_cast<std::size_t>(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(out.data() + static_cast<std::size_t>(row) * row_bytes,
                tensor.data.data() + static_cast<std::size_t>(stored_row(tensor, rows, row)) * row_bytes, row_bytes);
  }
  return out;
}

gpu::DType plain_type(gguf::TensorType type) {
  if (type == gguf::TensorType::f32) return gpu::DType::f32;
  return type == gguf::TensorType::f16 ? gpu::DType::f16 : gpu::DType::bf16;
}

// Takes tensors from the checkpoint to the device, or only counts their bytes when there is no device. Without a
// checkpoint, too, it counts what one with matrices of `type` would hold.
class Uploader {
 public:
  Uploader(Checkpoint* checkpoint, WeightForm form, gpu::DType type, gpu::Backend* backend, Weights& weights)
      : checkpoint_(checkpoint), form_(form), type_(type), backend_(backend), weights_(weights) {
    if (backend_) stream_ = backend_->stream();
  }

  // Whatever was handed over has reached the device.
  void finish() {
    if (backend_) backend_->synchronize(stream_);
    staged_.clear();
  }

  // A matrix of which single rows are read. It stays in host memory where there is other memory.
  gpu::Matrix table(const std::string& name, int rows, int cols) {
    on_host_ = !backend_ || backend_->memory().budget_bytes > 0;
    const std::uint64_t before = weights_.bytes;
    gpu::Matrix table = matrix(name, rows, cols);
    if (on_host_) weights_.host_bytes = weights_.bytes - before;
    table.on_host = on_host_;
    on_host_ = false;
    return table;
  }

  gpu::Matrix matrix(const std::string& name, int rows, int cols) {
    if (!checkpoint_) return counted({nullptr, type_, rows, cols});
    const CheckpointTensor tensor = checkpoint_->at(name, {rows, cols});
    if (form_ == WeightForm::f16 && tensor.type != gguf::TensorType::f16) return as_f16(tensor, rows, cols);
    if (const auto packing = gguf::packing_of(tensor.type)) {
      if (backend_ && !backend_->multiplies_packed()) return as_f16(tensor, rows, cols);
      return packed(name, tensor, rows, cols, *packing,
                    [&](auto tile_rows, std::byte* out) { return gguf::pack_tile(tensor.type, tile_rows, cols, out); });
    }
    const gpu::Packing packing = form_ == WeightForm::q4 ? packing_of_4_bits() : packing_of_8_bits();
    if ((form_ == WeightForm::q8 || form_ == WeightForm::q4) && cols % packing.columns() == 0) {
      return packed(name, tensor, rows, cols, packing, [&](auto tile_rows, std::byte* out) {
        return quantise_tile(tensor, tile_rows, cols, packing, out);
      });
    }
    return plain(tensor, rows, cols);
  }

  // A matrix of a model that is not there.
  gpu::Matrix counted(gpu::Matrix matrix) {
    if (form_ == WeightForm::f16) matrix.type = gpu::DType::f16;
    const gpu::Packing packing = form_ == WeightForm::q4 ? packing_of_4_bits() : packing_of_8_bits();
    if ((form_ == WeightForm::q8 || form_ == WeightForm::q4) && matrix.cols % packing.columns() == 0) {
      matrix.type = gpu::DType::packed;
      matrix.packing = packing;
    }
    weights_.bytes += gpu::bytes_of(matrix);
    return matrix;
  }

  const float* vector(const std::string& name, int n, float plus = 0) {
    if (!checkpoint_) return values(std::vector<float>(static_cast<std::size_t>(n)));
    CheckpointTensor tensor = checkpoint_->at(name, {n});
    std::vector<std::byte> ordered;
    if (tensor.paired_heads) tensor.data = ordered = unpaired(tensor, n);
    std::vector<float> x(static_cast<std::size_t>(n));
    gguf::dequantise(tensor.type, tensor.data, x.data());
    for (float& each : x) each += plus;
    return values(std::move(x));
  }

  // The weights of a norm, as what they multiply by.
  const float* norm(const std::string& name, int n, const ModelConfig& config) {
    return vector(name, n, config.norms_less_one ? 1.0f : 0.0f);
  }

  float* values(std::vector<float> x) {
    staged_.push_back(std::move(x));
    return static_cast<float*>(upload(staged_.back().data(), staged_.back().size() * sizeof(float)));
  }

 private:
  void* upload(const void* host, std::uint64_t bytes) {
    weights_.bytes += bytes;
    if (!backend_) return nullptr;
    if (on_host_) {
      weights_.host_table = backend_->host_memory(bytes);
      std::memcpy(weights_.host_table.get(), host, bytes);
      return weights_.host_table.get();
    }
    weights_.buffers.push_back(backend_->allocate(bytes, stream_));
    void* device = weights_.buffers.back().as<void>();
    backend_->to_device(device, host, bytes, stream_);
    return device;
  }

  gpu::Matrix plain(const CheckpointTensor& tensor, int rows, int cols) {
    std::vector<std::byte> ordered;
    std::span<const std::byte> data = tensor.data;
    if (backend_ && tensor.paired_heads) data = ordered = unpaired(tensor, rows);
    void* const device = upload(data.data(), data.size());
    gpu::DType type = plain_type(tensor.type);
    if (backend_ && !on_host_) {
      type = backend_->convert_weights(device, type, std::int64_t{rows} * cols, stream_);
      if (!ordered.empty()) backend_->synchronize(stream_);  // the copy may still read them
    }
    return {device, type, rows, cols};
  }

  // pack(rows of a tile, out): see gguf::pack_tile.
  template <class Pack>
  gpu::Matrix packed(const std::string& name, const CheckpointTensor& tensor, int rows, int cols,
                     const gpu::Packing& packing, const Pack& pack) {
    gpu::Matrix matrix{nullptr, gpu::DType::packed, rows, cols, packing};
    if (!backend_) {
      weights_.bytes += gpu::bytes_of(matrix);
      return matrix;
    }
    if (!backend_->multiplies_packed()) {
      fail("{}: weights cannot be quantised for the device {}; use --device cpu, or --weights f16", checkpoint_->path(),
           backend_->name());
    }
    const std::size_t row_bytes = tensor.data.size() / static_cast<std::size_t>(rows);
    std::vector<std::byte> bytes(gpu::bytes_of(matrix));
    std::atomic<bool> fits = true;
    constexpr int height = gpu::packed_tile_rows;
    backend_->threads().parallel_for((rows + height - 1) / height, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t tile = begin; tile < end; ++tile) {
        std::vector<const std::byte*> tile_rows;
        for (std::int64_t row = tile * height; row < std::min<std::int64_t>((tile + 1) * height, rows); ++row) {
          tile_rows.push_back(tensor.data.data() + static_cast<std::size_t>(stored_row(tensor, rows, row)) * row_bytes);
        }
        const std::span<const std::byte* const> views(tile_rows);
        if (!pack(views, bytes.data() + static_cast<std::size_t>(tile) * packing.tile_bytes(cols))) fits = false;
      }
    });
    if (!fits) {
      fail("{}: tensor {} holds scales or numbers beyond the range of f16; use --weights f16", checkpoint_->path(),
           name);
    }
    matrix.data = upload(bytes.data(), bytes.size());
    backend_->synchronize(stream_);
    return matrix;
  }

  static bool quantise_tile(const CheckpointTensor& tensor, std::span<const std::byte* const> rows, int cols,
                            const gpu::Packing& packing, std::byte* out) {
    std::memset(out, 0, packing.tile_bytes(cols));
    std::vector<float> row(static_cast<std::size_t>(cols));
    const std::size_t row_bytes = row.size() * static_cast<std::size_t>(gguf::traits(tensor.type).block_bytes);
    bool fits = true;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      gguf::dequantise(tensor.type, {rows[i], row_bytes}, row.data());
      fits &= quantise_row(packing, row, static_cast<int>(i), out);
    }
    return fits;
  }

  gpu::Matrix as_f16(const CheckpointTensor& tensor, int rows, int cols) {
    gpu::Matrix matrix{nullptr, gpu::DType::f16, rows, cols};
    if (!backend_) {
      weights_.bytes += gpu::bytes_of(matrix);
      return matrix;
    }
    std::vector<float> row(static_cast<std::size_t>(cols));
    std::vector<f16> halves(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols));
    const std::size_t row_bytes = tensor.data.size() / static_cast<std::size_t>(rows);
    for (int r = 0; r < rows; ++r) {
      const auto from = static_cast<std::size_t>(stored_row(tensor, rows, r)) * row_bytes;
      gguf::dequantise(tensor.type, tensor.data.subspan(from, row_bytes), row.data());
      std::transform(row.begin(), row.end(), halves.begin() + static_cast<std::ptrdiff_t>(r) * cols, to_f16);
    }
    matrix.data = upload(halves.data(), halves.size() * sizeof(f16));
    backend_->synchronize(stream_);
    return matrix;
  }

  Checkpoint* checkpoint_;
  WeightForm form_;
  gpu::DType type_;
  gpu::Backend* backend_;
  Weights& weights_;
  gpu::Stream stream_;
  bool on_host_ = false;                   // whether what is uploaded stays there
  std::deque<std::vector<float>> staged_;  // copies to the device may still read them until finish()
};

WeightSizes sizes_of(const Weights& weights) {
  WeightSizes sizes{weights.bytes, weights.host_bytes, gpu::bytes_of(weights.output)};
  for (const LayerWeights& w : weights.layers) {
    for (const gpu::Matrix& matrix : {w.q, w.k, w.v, w.o, w.gate, w.up, w.down}) {
      sizes.bytes_per_step += gpu::bytes_of(matrix);
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
  const auto norm = [&](const std::string& name, int n) { return uploader.norm(name, n, config); };
  if (config.norms != Norms::after) layer.attention_norm = norm(prefix + "input_layernorm.weight", hidden);
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
    layer.q_norm = norm(attention + "q_norm.weight", config.qk_norm_whole ? q_width : config.head_dim);
    layer.k_norm = norm(attention + "k_norm.weight", config.qk_norm_whole ? kv_width : config.head_dim);
  }

  if (config.norms == Norms::before) {
    layer.mlp_norm = norm(prefix + "post_attention_layernorm.weight", hidden);
  } else {
    layer.attended_norm = norm(prefix + "post_attention_layernorm.weight", hidden);
    if (config.norms == Norms::both) layer.mlp_norm = norm(prefix + "pre_feedforward_layernorm.weight", hidden);
    layer.output_norm = norm(prefix + "post_feedforward_layernorm.weight", hidden);
  }
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
      "{}: holds {} tensor{} that a model of type {} does not have ({}): configuration and weights do not belong "
      "together, or its options (model_type, num_hidden_layers, attention_bias, mlp_bias) are wrong",
      checkpoint.path(), names.size(), names.size() == 1 ? "" : "s", config.architecture, list);
}

// `checkpoint` may be null when there is no backend; `type` is that of its matrices then.
Weights take_weights(Checkpoint* checkpoint, WeightForm form, gpu::DType type, const ModelConfig& config,
                     gpu::Backend* backend) {
  Weights weights;
  Uploader uploader(checkpoint, form, type, backend, weights);
  const bool tied = !own_output(checkpoint, config, weights);
  const char* const table = embedding_tensor(checkpoint, config);
  weights.embedding = tied ? uploader.matrix(table, config.vocab_size, config.hidden_size)
                           : uploader.table(table, config.vocab_size, config.hidden_size);
  for (int i = 0; i < config.layers; ++i) {
    weights.layers.push_back(layer_weights(fmt::format("model.layers.{}.", i), config, uploader));
  }
  weights.final_norm = uploader.norm("model.norm.weight", config.hidden_size, config);
  weights.output = tied ? weights.embedding : uploader.matrix(output_name, config.vocab_size, config.hidden_size);
  weights.inverse_frequency = uploader.values(config.global_table.inverse_frequency);
  if (!config.local_table.inverse_frequency.empty()) {
    weights.local_inverse_frequency = uploader.values(config.local_table.inverse_frequency);
  }
  uploader.finish();
  if (checkpoint) refuse_unread(*checkpoint, config);
  return weights;
}

}  // namespace

const char* name(WeightForm form) {
  constexpr const char* names[] = {"stored", "f16", "q8", "q4"};
  return names[static_cast<std::size_t>(form)];
}

Weights load_weights(Checkpoint& checkpoint, const ModelConfig& config, gpu::Backend& backend, WeightForm form) {
  Weights weights = take_weights(&checkpoint, form, {}, config, &backend);
  offload::check_mapped_files();
  return weights;
}

WeightSizes weight_sizes(Checkpoint& checkpoint, WeightForm form) {
  return sizes_of(take_weights(&checkpoint, form, {}, checkpoint.config(), nullptr));
}

WeightSizes weight_sizes(const ModelConfig& config, gpu::DType type, WeightForm form) {
  return sizes_of(take_weights(nullptr, form, type, config, nullptr));
}

}  // namespace hayloft::runtime
