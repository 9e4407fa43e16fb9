#include "gpu/cuda/memory/row_stream.h"

#include <algorithm>
#include <cstring>

#include "gpu/cuda/memory/device_arena.h"
#include "gpu/cuda/memory/staging_ring.h"
#include "gpu/cuda/memory/store_tables.h"
#include "gpu/device_plan.h"

namespace hayloft::gpu::cuda {
namespace {

// A copy of some megabytes already runs at the link's rate; more only makes the first and the last chunk, during which
// one side idles, longer.
constexpr std::uint64_t kBufferBytes = cuda_stream_bytes;
constexpr std::uint64_t kBudgetShare = 8;  // of what is left, for one of the two buffers

constexpr std::int64_t kStagedRows = 64;  // that a host thread copies at a time

std::uint64_t row_bytes(const CacheView& cache) {
  return sizeof(f16) * 2 * static_cast<std::uint64_t>(cache.head_dim);
}

std::int64_t rows_of_a_buffer(const Context& context, const CacheView& cache, int heads, std::int64_t rows) {
  const std::uint64_t budget = context.arena.budget_bytes();
  const std::uint64_t left = budget - std::min(budget, context.arena.used_bytes());
  const std::uint64_t bytes = std::min(kBufferBytes, left / kBudgetShare);
  const std::int64_t per_head = static_cast<std::int64_t>(bytes / row_bytes(cache)) / heads;
  return heads * std::max<std::int64_t>(1, std::min(per_head, rows));
}

}  // namespace

RowStream::RowStream(const Context& context, const CacheView& cache, int heads, std::int64_t rows, cudaStream_t stream)
    : context_(context),
      cache_(cache),
      stream_(stream),
      pinned_(context.tables.pinned(cache.store)),
      staging_(pinned_ ? std::unique_lock<std::mutex>() : context.staging.lock()),
      buffer_rows_(rows_of_a_buffer(context, cache, heads, rows)),
      halves_{{{context, buffer_rows_ * 2 * cache.head_dim, stream}, {}, {}},
              {{context, buffer_rows_ * 2 * cache.head_dim, stream}, {}, {}}} {
  context_.order(stream_, context_.copies);  // the buffers are theirs from here on
}

void RowStream::range(std::int64_t begin, std::int64_t end, const Use& use) {
  const int heads = cache_.kv_heads;
  const auto row = [this](int head, std::int64_t at) { return cache_.store.row(head, at); };
  for (; begin < end; begin += chunk_rows(heads)) {
    const std::int64_t to = std::min(begin + chunk_rows(heads), end);
    chunk(
        begin, to, [&](f16* rows) { pinned_ ? copy_blocks(begin, to, rows) : stage(heads, begin, to, row, rows); },
        use);
  }
}

void RowStream::lists(const std::int32_t* positions, int lists, int k, const Use& use) {
  const int lists_per_head = lists / cache_.kv_heads;
  const auto row = [&](int list, std::int64_t at) {
    return cache_.store.row(list / lists_per_head, positions[static_cast<std::int64_t>(list) * k + at]);
  };
  for (std::int64_t begin = 0; begin < k; begin += chunk_rows(lists)) {
    const std::int64_t to = std::min<std::int64_t>(begin + chunk_rows(lists), k);
    chunk(
        begin, to, [&](f16* rows) { stage(lists, begin, to, row, rows); }, use);
  }
}

void RowStream::chunk(std::int64_t begin, std::int64_t end, const std::function<void(f16* to)>& fill, const Use& use) {
  Half& half = halves_[next_];
  next_ = 1 - next_;
  if (half.in_use) half.used.wait(context_.copies);
  fill(half.rows);
  half.filled.record(context_.copies);
  half.filled.wait(stream_);
  use({half.rows, end - begin, 0, begin}, begin, end);
  half.used.record(stream_);
  half.in_use = true;
}

// All heads' rows of a block's share of the chunk in one copy.
void RowStream::copy_blocks(std::int64_t begin, std::int64_t end, f16* to) {
  const offload::BlockLayout& layout = *cache_.store.layout;
  const std::uint64_t bytes = row_bytes(cache_);
  const std::uint64_t pitch = static_cast<std::uint64_t>(end - begin) * bytes;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t block = at / layout.block_tokens;
    const std::int64_t next = std::min(end, (block + 1) * layout.block_tokens);
    HAYLOFT_CUDA(cudaMemcpy2DAsync(to + (at - begin) * 2 * cache_.head_dim, pitch, cache_.store.row(0, at),
                                   layout.head_bytes, static_cast<std::uint64_t>(next - at) * bytes,
                                   static_cast<std::size_t>(cache_.kv_heads), cudaMemcpyHostToDevice, context_.copies));
    at = next;
  }
}

// Rows lie in the buffer as they lie in the ring, head after head, so that a piece of the ring may end anywhere.
void RowStream::stage(int heads, std::int64_t begin, std::int64_t end, const Address& address, f16* to) {
  StagingRing& ring = context_.staging;
  const std::uint64_t bytes = row_bytes(cache_);
  const std::int64_t piece_rows = static_cast<std::int64_t>(ring.piece_bytes() / bytes);
  const std::int64_t rows = heads * (end - begin);
  for (std::int64_t done = 0; done < rows; done += piece_rows) {
    const std::int64_t n = std::min(piece_rows, rows - done);
    std::byte* const piece = ring.acquire();
    context_.threads.parallel_for(n, kStagedRows, [&](std::int64_t from, std::int64_t until) {
      for (std::int64_t i = from; i < until; ++i) {
        const int head = static_cast<int>((done + i) / (end - begin));
        std::memcpy(piece + static_cast<std::uint64_t>(i) * bytes, address(head, begin + (done + i) % (end - begin)),
                    bytes);
      }
    });
    HAYLOFT_CUDA(cudaMemcpyAsync(to + done * 2 * cache_.head_dim, piece, static_cast<std::uint64_t>(n) * bytes,
                                 cudaMemcpyHostToDevice, context_.copies));
    ring.release(context_.copies);
  }
}

}  // namespace hayloft::gpu::cuda
