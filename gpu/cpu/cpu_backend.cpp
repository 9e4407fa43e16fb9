#include "gpu/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "gpu/cpu/elementwise.h"
#include "gpu/cpu/packed.h"
#include "gpu/make_backend.h"
#include "gpu/table_row.h"
#include "offload/error.h"
#include "offload/host/topology.h"

namespace hayloft::gpu {
namespace {

constexpr std::int64_t kElementGrain = 16384;  // elements per piece of an elementwise operation, at least
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;  // large buffers are read faster through fewer pages

std::int64_t rows_per_piece(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, kElementGrain / std::max<std::int64_t>(1, row_elements));
}

// Returns memory that std::free() gives back; throws NoMemory. From a huge page on it asks for whole huge pages, and
// for the last of them too where that wastes an eighth at most.
void* in_large_pages(std::uint64_t bytes) {
  const bool large = bytes >= kHugePage;
  const std::uint64_t whole = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  const std::uint64_t lines = std::max(bytes + kAlignment - 1, kAlignment) / kAlignment * kAlignment;
  const std::uint64_t rounded = large && whole - bytes <= bytes / 8 ? whole : lines;
  void* data = nullptr;
  if (whole < bytes || posix_memalign(&data, large ? kHugePage : kAlignment, rounded) != 0) {
    fail_for_memory(
        "cannot allocate {} bytes of memory for the model; use a smaller model or context, or raise the process' limit "
        "(ulimit -v, ulimit -d)",
        bytes);
  }
  if (large) madvise(data, rounded / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: nothing is lost if refused
  return data;
}

}  // namespace

CpuBackend::CpuBackend(const offload::Threads& threads, Products products) : threads_(threads), products_(products) {}

std::string CpuBackend::description() const {
  return fmt::format("{}; {} threads", offload::Topology().describe(), threads_.count());
}

Buffer CpuBackend::allocate(std::uint64_t bytes, Stream stream) {
  return Buffer(this, in_large_pages(bytes), bytes, stream);
}

Buffer CpuBackend::allocate_weights(std::uint64_t bytes, Stream stream) {
  constexpr std::uint64_t piece_bytes = 8 * kHugePage;
  if (bytes > piece_bytes / 4) return allocate(bytes, stream);
  const std::uint64_t taken = std::max(bytes + kAlignment - 1, kAlignment) / kAlignment * kAlignment;
  const std::lock_guard lock(pieces_mutex_);
  if (pieces_.empty() || piece_bytes - pieces_.back().taken < taken) {
    pieces_.reserve(pieces_.size() + 1);
    pieces_.push_back({static_cast<std::byte*>(in_large_pages(piece_bytes)), 0, 0});
  }
  WeightPiece& piece = pieces_.back();
  std::byte* const data = piece.data + piece.taken;
  piece.taken += taken;
  ++piece.buffers;
  return Buffer(this, data, bytes, stream);
}

void CpuBackend::embed(const Matrix& table, const std::int32_t* tokens, int T, float* out, Stream) {
  for (int t = 0; t < T; ++t) {
    if (tokens[t] < 0 || tokens[t] >= table.rows) {
      fail("token id {} is outside the model's vocabulary of {}: the tokenizer does not belong to this model",
           tokens[t], table.rows);
    }
  }
  threads_.parallel_for(T, rows_per_piece(table.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      if (table.type == DType::packed) {
        read_row(table, tokens[t], out + t * table.cols);
        continue;
      }
      const std::int64_t offset = static_cast<std::int64_t>(tokens[t]) * table.cols * bytes_of(table.type);
      widen(static_cast<const std::byte*>(table.data) + offset, table.type, table.cols, out + t * table.cols);
    }
  });
}

void CpuBackend::gather_rows(const float* x, std::span<const std::int32_t> rows, int cols, float* y, Stream) {
  const auto n = static_cast<std::int64_t>(rows.size());
  threads_.parallel_for(n, rows_per_piece(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      move(y + i * cols, x + std::int64_t{rows[static_cast<std::size_t>(i)]} * cols,
           static_cast<std::uint64_t>(cols) * sizeof(float));
    }
  });
}

// A piece has some columns of every row.
void CpuBackend::sum_rows(float* x, std::span<const std::int32_t> rows, std::span<const float> weights, int T, int cols,
                          float* y, Stream) {
  const auto n = static_cast<std::int64_t>(rows.size());
  threads_.parallel_for(cols, rows_per_piece(n), [&](std::int64_t begin, std::int64_t end) {
    std::vector<bool> begun(static_cast<std::size_t>(T));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      float* const from = x + i * cols + begin;
      float* const to = y + std::int64_t{rows[at]} * cols + begin;
      scale_by(from, weights[at], end - begin);
      const auto row = static_cast<std::size_t>(rows[at]);
      if (begun[row]) {
        add_to(to, from, end - begin);
      } else {
        move(to, from, static_cast<std::uint64_t>(end - begin) * sizeof(float));
      }
      begun[row] = true;
    }
  });
}

void CpuBackend::rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, Stream) {
  threads_.parallel_for(rows, rows_per_piece(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) rms_norm_row(x + row * n, n, weight, eps, y + row * n);
  });
}

void CpuBackend::add(float* y, const float* x, std::int64_t n, Stream) {
  threads_.parallel_for(n, kElementGrain,
                        [&](std::int64_t begin, std::int64_t end) { add_to(y + begin, x + begin, end - begin); });
}

void CpuBackend::silu_mul(float* gate, const float* up, std::int64_t n, Stream) {
  threads_.parallel_for(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    silu_mul_to(gate + begin, up + begin, end - begin);
  });
}

void CpuBackend::scale(float* x, std::int64_t n, float factor, Stream) {
  threads_.parallel_for(n, kElementGrain,
                        [&](std::int64_t begin, std::int64_t end) { scale_by(x + begin, factor, end - begin); });
}

void CpuBackend::sigmoid_mul(float* x, const float* gate, std::int64_t n, Stream) {
  threads_.parallel_for(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    sigmoid_mul_to(x + begin, gate + begin, end - begin);
  });
}

void CpuBackend::gelu_mul(float* gate, const float* up, std::int64_t n, Stream) {
  threads_.parallel_for(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    gelu_mul_to(gate + begin, up + begin, end - begin);
  });
}

void CpuBackend::soft_cap(float* x, std::int64_t n, float cap, Stream) {
  threads_.parallel_for(n, kElementGrain,
                        [&](std::int64_t begin, std::int64_t end) { soft_cap_to(x + begin, cap, end - begin); });
}

void CpuBackend::clamped_mul(float* gate, const float* up, std::int64_t n, float limit, Stream) {
  threads_.parallel_for(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    clamped_mul_to(gate + begin, up + begin, limit, end - begin);
  });
}

void CpuBackend::flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag, Stream) {
  std::atomic<bool> found = false;
  threads_.parallel_for(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    if (any_nonfinite(x + begin, end - begin)) found = true;
  });
  if (found) *flag = std::min(*flag, tag);
}

void CpuBackend::append(const CacheView& cache, const float* k, const float* v, int T, Stream) {
  const std::int64_t d = cache.head_dim;
  const TailView& tail = cache.tail;
  threads_.parallel_for(T, rows_per_piece(2 * d * cache.kv_heads), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (int head = 0; head < cache.kv_heads; ++head) {
        f16* row = tail.rows + (head * tail.capacity + tail.first + tail.tokens + t) * 2 * d;
        const std::int64_t from = (t * cache.kv_heads + head) * d;
        narrow(k + from, d, row);
        narrow(v + from, d, row + d);
      }
    }
  });
}

void CpuBackend::spill(const CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
                       Stream) {
  const std::int64_t stride = 2 * cache.head_dim;
  const TailView& tail = cache.tail;
  threads_.parallel_for(cache.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      const f16* rows = tail.rows + (head * tail.capacity + tail.first) * stride;
      offload::fill_block(layout, block, static_cast<int>(head), rows, stride, tokens);
    }
  });
}

void CpuBackend::move(void* to, const void* from, std::uint64_t bytes) {
  if (bytes) std::memmove(to, from, bytes);
}

void CpuBackend::release(void* data, std::uint64_t, Stream) noexcept {
  const std::lock_guard lock(pieces_mutex_);
  const auto of_piece = std::find_if(pieces_.begin(), pieces_.end(), [&](const WeightPiece& piece) {
    const auto* const at = static_cast<const std::byte*>(data);
    return std::less_equal<>()(piece.data, at) && std::less<>()(at, piece.data + piece.taken);
  });
  if (of_piece == pieces_.end()) return std::free(data);
  if (--of_piece->buffers > 0) return;
  std::free(of_piece->data);
  pieces_.erase(of_piece);
}

std::unique_ptr<Backend> make_cpu_backend(const offload::Threads& threads, Products products) {
  return std::make_unique<CpuBackend>(threads, products);
}

}  // namespace hayloft::gpu
