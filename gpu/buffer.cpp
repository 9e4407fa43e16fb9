#include <stdexcept>
#include <utility>

#include "gpu/backend.h"

namespace hayloft::gpu {

Buffer::Buffer(Backend* backend, void* data, std::uint64_t bytes, Stream stream)
    : backend_(backend), data_(data), bytes_(bytes), stream_(stream) {}

Buffer::Buffer(Buffer&& other) noexcept
    : backend_(std::exchange(other.backend_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      stream_(other.stream_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(backend_, taken.backend_);
  std::swap(data_, taken.data_);
  std::swap(bytes_, taken.bytes_);
  std::swap(stream_, taken.stream_);
  return *this;
}

Buffer::~Buffer() {
  if (data_) backend_->release(data_, bytes_, stream_);
}

std::shared_ptr<std::byte> Backend::host_memory(std::uint64_t bytes) {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

void Backend::multiply_each(std::span<const MatrixProduct> products, Stream stream) {
  for (const MatrixProduct& each : products) matmul(each.x, each.T, *each.w, each.bias, each.y, stream);
}

void Backend::add_and_norm(const AddAndNorm& what, Stream stream) {
  const std::int64_t n = std::int64_t{what.rows} * what.n;
  add(what.y, what.x, n, stream);
  if (what.flag) flag_nonfinite(what.y, n, what.tag, what.flag, stream);
  if (what.weight) rms_norm(what.y, what.rows, what.n, what.weight, what.eps, what.normed, stream);
}

void Backend::enter(const CacheView& cache, const NewHeads& heads, Stream stream) {
  const int d = cache.head_dim;
  const auto norm = [&](float* x, int count, const float* weight) {
    if (x && weight) rms_norm(x, heads.T * count, d, weight, heads.eps, x, stream);
  };
  const auto turn = [&](float* x, int count) {
    if (x && heads.rope.inverse_frequency) rope(x, heads.T, count, d, cache.tokens(), heads.rope, stream);
  };
  norm(heads.k, cache.kv_heads, heads.k_norm);
  norm(heads.v, cache.kv_heads, heads.v_norm);
  norm(heads.q, heads.query_heads, heads.q_norm);
  turn(heads.k, cache.kv_heads);
  append(cache, heads.k, heads.v, heads.T, stream);
  turn(heads.q, heads.query_heads);
}

void Backend::gather_rows(const float* x, std::span<const std::int32_t> rows, int cols, float* y, Stream stream) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(cols) * sizeof(float);
  for (const std::int32_t row : rows) {
    copy(y, x + std::int64_t{row} * cols, bytes, stream);
    y += cols;
  }
}

void Backend::sum_rows(float* x, std::span<const std::int32_t> rows, std::span<const float> weights, int T, int cols,
                       float* y, Stream stream) {
  std::vector<bool> begun(static_cast<std::size_t>(T));
  for (std::size_t i = 0; i < rows.size(); ++i, x += cols) {
    float* const to = y + std::int64_t{rows[i]} * cols;
    scale(x, cols, weights[i], stream);
    const auto row = static_cast<std::size_t>(rows[i]);
    if (begun[row]) {
      add(to, x, cols, stream);
    } else {
      copy(to, x, static_cast<std::uint64_t>(cols) * sizeof(float), stream);
    }
    begun[row] = true;
  }
}

void Backend::attend_causal_part(const CacheView&, const float*, int, int, std::int64_t, const SoftmaxPart&, float*,
                                 Stream) {
  throw std::logic_error("attend_causal_part: this backend does not attend in parts");
}

void Backend::attend_with_rest(const CacheView&, const float*, int, const RestStep&, float*, Stream) {
  throw std::logic_error("attend_with_rest: this backend does not estimate the rest");
}

}  // namespace hayloft::gpu
