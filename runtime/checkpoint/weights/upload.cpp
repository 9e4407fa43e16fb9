#include "runtime/checkpoint/weights/upload.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "offload/error.h"
#include "offload/half.h"
#include "offload/host/mapped_file.h"
#include "runtime/checkpoint/gguf/pack.h"
#include "runtime/checkpoint/weights/expert_placement.h"
#include "runtime/checkpoint/weights/quantise.h"

namespace hayloft::runtime {

namespace {

constexpr std::size_t staged_bytes = std::size_t{8} << 20;  // of a matrix on its way

bool in_order(const CheckpointTensor& tensor) {
  return tensor.paired_heads == 0 && tensor.run_rows == 0;
}

std::size_t row_bytes(const CheckpointTensor& tensor, std::int64_t rows) {
  const std::int64_t stored = tensor.run_rows == 0 ? rows : 2 * rows - tensor.run_rows;
  return tensor.data.size() / static_cast<std::size_t>(stored);
}

// Returns where a row of a matrix lies in a checkpoint that may have the components of heads in pairs, or other rows
// between.
std::int64_t stored_row(const CheckpointTensor& tensor, std::int64_t rows, std::int64_t row) {
  if (tensor.run_rows > 0) return row + row / tensor.run_rows * tensor.run_rows;
  if (tensor.paired_heads == 0) return row;
  const std::int64_t d = rows / tensor.paired_heads;
  const std::int64_t i = row % d;
  return row - i + (i < d / 2 ? 2 * i : 2 * (i - d / 2) + 1);
}

// All rows in their order.
std::vector<std::byte> ordered_rows(const CheckpointTensor& tensor, std::int64_t rows) {
  const std::size_t bytes = row_bytes(tensor, rows);
  std::vector<std::byte> out(bytes * static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::memcpy(out.data() + static_cast<std::size_t>(row) * bytes,
                tensor.data.data() + static_cast<std::size_t>(stored_row(tensor, rows, row)) * bytes, bytes);
  }
  return out;
}

gpu::DType plain_type(gguf::TensorType type) {
  if (type == gguf::TensorType::f32) return gpu::DType::f32;
  return type == gguf::TensorType::f16 ? gpu::DType::f16 : gpu::DType::bf16;
}

bool quantise_tile(const CheckpointTensor& tensor, std::span<const std::byte* const> rows, int cols,
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

}  // namespace

WeightUpload::WeightUpload(Checkpoint* checkpoint, WeightForm form, gpu::DType type, gpu::Backend* backend,
                           Weights& weights, const std::optional<gpu::Packing>& packing, bool experts_on_host)
    : checkpoint_(checkpoint),
      form_(form),
      type_(type),
      packing_(packing),
      backend_(backend),
      experts_on_host_(experts_on_host),
      weights_(weights) {
  if (backend_) stream_ = backend_->stream();
  if (checkpoint_) checkpoint_->for_sizes_alone(backend_ == nullptr);
}

WeightUpload::OfMixture::OfMixture(WeightUpload& upload) : upload_(upload), before_(upload.weights_.bytes) {
  upload.of_mixture_ = true;
  upload.on_host_ = upload.experts_on_host_;
}

WeightUpload::OfMixture::~OfMixture() {
  upload_.weights_.mixture_bytes += upload_.weights_.bytes - before_;
  upload_.of_mixture_ = upload_.on_host_ = false;
}

void WeightUpload::finish() {
  if (backend_) backend_->synchronize(stream_);
  staged_.clear();
}

gpu::Matrix WeightUpload::table(const std::string& name, int rows, int cols) {
  on_host_ = !backend_ || backend_->memory().budget_bytes > 0;
  const std::uint64_t before = weights_.bytes;
  gpu::Matrix table = matrix(name, rows, cols);
  if (on_host_) weights_.host_bytes += weights_.bytes - before;
  table.on_host = on_host_;
  on_host_ = false;
  return table;
}

gpu::Matrix WeightUpload::matrix(const std::string& name, int rows, int cols) {
  if (!checkpoint_) return counted({nullptr, type_, rows, cols});
  return take(name, checkpoint_->at(name, {rows, cols}), rows, cols);
}

gpu::Matrix WeightUpload::unquantised(const std::string& name, int rows, int cols) {
  const WeightForm form = std::exchange(form_, form_ == WeightForm::f16 ? WeightForm::f16 : WeightForm::stored);
  gpu::Matrix matrix = this->matrix(name, rows, cols);
  form_ = form;
  return matrix;
}

gpu::Matrix WeightUpload::gate(const std::string& name, int rows, int cols) {
  if (backend_) refuse_damage(name, numbers(name, {rows, cols}));  // otherwise sizes alone are read
  return unquantised(name, rows, cols);
}

gpu::Matrix WeightUpload::half_of_heads(const std::string& name, int heads, int d, int cols, int half) {
  const int rows = heads * d;
  if (!checkpoint_) return counted({nullptr, type_, rows, cols});
  CheckpointTensor tensor = checkpoint_->at(name, {2 * rows, cols});
  const std::size_t run = tensor.data.size() / static_cast<std::size_t>(2 * heads);
  tensor.data = tensor.data.subspan(static_cast<std::size_t>(half) * run, tensor.data.size() - run);
  tensor.run_rows = d;
  return take(name, tensor, rows, cols);
}

gpu::Matrix WeightUpload::take(const std::string& name, const CheckpointTensor& tensor, int rows, int cols) {
  gpu::Matrix matrix = as_wanted(name, tensor, rows, cols);
  if (backend_) offload::drop_mapped_pages(tensor.data);
  return matrix;
}

gpu::Matrix WeightUpload::as_wanted(const std::string& name, const CheckpointTensor& tensor, int rows, int cols) {
  if (form_ == WeightForm::f16 && tensor.type != gguf::TensorType::f16) return as_f16(tensor, rows, cols);
  if (const auto packing = gguf::packing_of(tensor.type)) {
    if (backend_ && !backend_->multiplies_packed()) return as_f16(tensor, rows, cols);
    return packed(name, tensor, rows, cols, *packing,
                  [&](auto tile_rows, std::byte* out) { return gguf::pack_tile(tensor.type, tile_rows, cols, out); });
  }
  const gpu::Packing packing = form_ == WeightForm::q4 ? packing_of_4_bits() : packing_of_8_bits();
  if ((form_ == WeightForm::q8 || form_ == WeightForm::q4) && cols % packing.columns() == 0) {
    return packed(name, tensor, rows, cols, packing,
                  [&](auto tile_rows, std::byte* out) { return quantise_tile(tensor, tile_rows, cols, packing, out); });
  }
  return plain(tensor, rows, cols);
}

// A matrix of a model that is not there.
gpu::Matrix WeightUpload::counted(gpu::Matrix matrix) {
  if (form_ == WeightForm::f16) matrix.type = gpu::DType::f16;
  const gpu::Packing packing = packing_                  ? *packing_
                               : form_ == WeightForm::q4 ? packing_of_4_bits()
                                                         : packing_of_8_bits();
  const bool pack = packing_ || form_ == WeightForm::q8 || form_ == WeightForm::q4;
  if (pack && matrix.cols % packing.columns() == 0) {
    matrix.type = gpu::DType::packed;
    matrix.packing = packing;
  }
  weights_.bytes += gpu::bytes_of(matrix);
  return matrix;
}

const float* WeightUpload::vector(const std::string& name, int n, float plus) {
  std::vector<float> x = numbers(name, {n});
  // Adding or dividing may hide it: a sink of infinity leaves attention nothing.
  refuse_damage(name, x);
  for (float& each : x) each += plus;
  return values(std::move(x));
}

void WeightUpload::refuse_damage(const std::string& name, std::span<const float> numbers) const {
  for (const float each : numbers) {
    if (!std::isfinite(each)) fail("{}: tensor {} holds {}: the file is damaged", checkpoint_->path(), name, each);
  }
}

std::vector<float> WeightUpload::numbers(const std::string& name, std::initializer_list<int> shape) {
  std::size_t n = 1;
  for (const int size : shape) n *= static_cast<std::size_t>(size);
  std::vector<float> x(n);
  if (!checkpoint_) return x;
  CheckpointTensor tensor = checkpoint_->at(name, shape);
  std::vector<std::byte> ordered;
  if (!in_order(tensor)) tensor.data = ordered = ordered_rows(tensor, *shape.begin());
  gguf::dequantise(tensor.type, tensor.data, x.data());
  if (tensor.negated_exponentials) {
    for (float& each : x) {
      if (!(each < 0)) fail("{}: {} holds {}; it must be below zero", checkpoint_->path(), name, each);
      each = std::log(-each);
    }
  }
  return x;
}

const float* WeightUpload::norm(const std::string& name, int n, const ModelConfig& config) {
  return vector(name, n, config.norms_less_one ? 1.0f : 0.0f);
}

float* WeightUpload::values(std::vector<float> x) {
  staged_.push_back(std::move(x));
  return static_cast<float*>(upload(staged_.back().data(), staged_.back().size() * sizeof(float)));
}

void* WeightUpload::upload(const void* host, std::uint64_t bytes) {
  void* const room = make_room(bytes);
  if (room) put(room, host, bytes);
  return room;
}

// Null without a device, where bytes are only counted.
void* WeightUpload::make_room(std::uint64_t bytes) {
  weights_.bytes += bytes;
  if (!backend_) return nullptr;
  if (on_host_) return make_room_on_host(bytes);
  weights_.buffers.push_back(backend_->allocate_weights(bytes, stream_));
  return weights_.buffers.back().as<void>();
}

void WeightUpload::put(void* room, const void* from, std::uint64_t bytes) {
  if (on_host_) {
    std::memcpy(room, from, bytes);
  } else {
    backend_->to_device(room, from, bytes, stream_);
  }
}

// Experts are many and small, so that they share pieces of host memory.
void* WeightUpload::make_room_on_host(std::uint64_t bytes) {
  constexpr std::uint64_t least = std::uint64_t{1} << 20, most = std::uint64_t{64} << 20;
  if (!of_mixture_) {
    weights_.host_table = backend_->host_memory(bytes);
    return weights_.host_table.get();
  }
  if (weights_.host_experts.empty() || piece_ - taken_ < bytes) {
    piece_ = std::max(std::clamp(2 * piece_, least, most), bytes);
    taken_ = 0;
    weights_.host_experts.push_back(backend_->host_memory(piece_));
  }
  std::byte* const to = weights_.host_experts.back().get() + taken_;
  taken_ = std::min(piece_, taken_ + expert_piece_bytes(bytes));
  return to;
}

gpu::Matrix WeightUpload::plain(const CheckpointTensor& tensor, int rows, int cols) {
  std::vector<std::byte> ordered;
  std::span<const std::byte> data = tensor.data;
  const std::size_t bytes = row_bytes(tensor, rows) * static_cast<std::size_t>(rows);
  if (backend_ && !in_order(tensor)) data = ordered = ordered_rows(tensor, rows);
  auto* const device = static_cast<std::byte*>(make_room(bytes));
  for (std::size_t at = 0; device && at < bytes; at += staged_bytes) {
    const std::span<const std::byte> piece = data.subspan(at, std::min(staged_bytes, bytes - at));
    put(device + at, piece.data(), piece.size());
    offload::drop_mapped_pages(piece);
  }
  const bool passing = !ordered.empty() || tensor.memory;
  gpu::DType type = plain_type(tensor.type);
  if (backend_ && !on_host_) {
    type = backend_->convert_weights(device, type, std::int64_t{rows} * cols, stream_);
    if (passing) backend_->synchronize(stream_);  // the copy may still read them
  }
  return {device, type, rows, cols};
}

gpu::Matrix WeightUpload::packed(const std::string& name, const CheckpointTensor& tensor, int rows, int cols,
                                 const gpu::Packing& packing, const PackTile& pack) {
  gpu::Matrix matrix{nullptr, gpu::DType::packed, rows, cols, packing};
  if (!backend_) {
    weights_.bytes += gpu::bytes_of(matrix);
    return matrix;
  }
  if (!backend_->multiplies_packed()) {
    fail("{}: weights cannot be quantised for the device {}; use --device cpu, or --weights f16", checkpoint_->path(),
         backend_->name());
  }
  const std::size_t stride = row_bytes(tensor, rows);
  const std::size_t tile_bytes = packing.tile_bytes(cols);
  std::atomic<bool> fits = true;
  constexpr int height = gpu::packed_tile_rows;
  const std::int64_t tiles = (rows + height - 1) / height;
  const std::int64_t at_once = std::clamp<std::int64_t>(staged_bytes / tile_bytes, 1, tiles);
  std::vector<std::byte> bytes(static_cast<std::size_t>(at_once) * tile_bytes);
  auto* const room = static_cast<std::byte*>(make_room(gpu::bytes_of(matrix)));
  const auto pack_tiles = [&](std::int64_t first, std::int64_t begin, std::int64_t end) {
    for (std::int64_t tile = first + begin; tile < first + end; ++tile) {
      std::vector<const std::byte*> tile_rows;
      for (std::int64_t row = tile * height; row < std::min<std::int64_t>((tile + 1) * height, rows); ++row) {
        tile_rows.push_back(tensor.data.data() + static_cast<std::size_t>(stored_row(tensor, rows, row)) * stride);
      }
      const std::span<const std::byte* const> views(tile_rows);
      if (!pack(views, bytes.data() + static_cast<std::size_t>(tile - first) * tile_bytes)) fits = false;
    }
  };
  for (std::int64_t first = 0; first < tiles; first += at_once) {
    const std::int64_t count = std::min(at_once, tiles - first);
    backend_->threads().parallel_for(count, 1, [&](auto begin, auto end) { pack_tiles(first, begin, end); });
    if (!fits) {
      fail("{}: tensor {} holds scales or numbers beyond the range of f16; use --weights f16", checkpoint_->path(),
           name);
    }
    put(room + static_cast<std::size_t>(first) * tile_bytes, bytes.data(),
        static_cast<std::size_t>(count) * tile_bytes);
    backend_->synchronize(stream_);
    if (in_order(tensor)) {
      const std::size_t from = static_cast<std::size_t>(first * height) * stride;
      offload::drop_mapped_pages(tensor.data.subspan(
          from, std::min(static_cast<std::size_t>(count * height) * stride, tensor.data.size() - from)));
    }
  }
  matrix.data = room;
  weights_.packed = true;
  return matrix;
}

gpu::Matrix WeightUpload::as_f16(const CheckpointTensor& tensor, int rows, int cols) {
  gpu::Matrix matrix{nullptr, gpu::DType::f16, rows, cols};
  if (!backend_) {
    weights_.bytes += gpu::bytes_of(matrix);
    return matrix;
  }
  std::vector<float> row(static_cast<std::size_t>(cols));
  const std::size_t at_once = std::max<std::size_t>(1, staged_bytes / (row.size() * sizeof(f16)));  // rows
  std::vector<f16> halves;
  const std::size_t stride = row_bytes(tensor, rows);
  auto* const room = static_cast<f16*>(make_room(gpu::bytes_of(matrix)));
  for (int r = 0; r < rows; ++r) {
    const auto from = static_cast<std::size_t>(stored_row(tensor, rows, r)) * stride;
    gguf::dequantise(tensor.type, tensor.data.subspan(from, stride), row.data());
    std::ranges::transform(row, std::back_inserter(halves), to_f16);
    const auto done = static_cast<std::size_t>(r) + 1;
    if (halves.size() < at_once * row.size() && r + 1 < rows) continue;
    put(room + done * row.size() - halves.size(), halves.data(), halves.size() * sizeof(f16));
    backend_->synchronize(stream_);
    halves.clear();
    if (in_order(tensor)) offload::drop_mapped_pages(tensor.data.first(done * stride));
  }
  matrix.data = room;
  return matrix;
}

}  // namespace hayloft::runtime
