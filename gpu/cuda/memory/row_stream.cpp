#include "gpu/cuda/memory/row_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/cuda/memory/device_arena.h"
#include "gpu/cuda/memory/host_copy.h"
#include "gpu/cuda/memory/staging_ring.h"
#include "gpu/cuda_memory.h"

namespace hayloft::gpu::cuda {
namespace {

// A copy of some megabytes already runs at the link's rate; more only makes the first and the last chunk, during which
// one side idles, longer.
constexpr std::uint64_t kBufferBytes = cuda_stream_bytes;
constexpr std::uint64_t kBudgetShare = 8;  // of what is left, for one of the two buffers

constexpr std::int64_t kStagedRows = 64;  // that a host thread copies at a time

// Returns what a row takes of each of the two buffers, to which the third adds half of a row's f16.
std::uint64_t buffer_row_bytes(const CacheView& cache) {
  const offload::BlockLayout& layout = *cache.store.layout;
  const bool integers = layout.row_format != offload::RowFormat::f16;
  return layout.row_bytes + (integers ? sizeof(f16) * static_cast<std::uint64_t>(cache.head_dim) : 0);
}

std::int64_t rows_of_a_buffer(const Context& context, const CacheView& cache, int heads, std::int64_t rows) {
  const std::uint64_t left = context.arena.room_for_step(2 * cuda_least_stream_bytes);
  const std::uint64_t bytes = std::clamp(left / kBudgetShare, cuda_least_stream_bytes, kBufferBytes);
  const std::int64_t per_head = static_cast<std::int64_t>(bytes / buffer_row_bytes(cache)) / heads;
  return heads * std::max<std::int64_t>(1, std::min(per_head, rows));
}

bool in_place(const std::vector<BlockRun>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](const BlockRun& run) { return run.in_place; });
}

}  // namespace

RowStream::RowStream(const Context& context, const CacheView& cache, int heads, std::int64_t rows, cudaStream_t stream)
    : context_(context),
      cache_(cache),
      stream_(stream),
      runs_(context.tables.runs(cache.store)),
      store_(cache.store.layout->row_format == offload::RowFormat::f16 ? DeviceStore{}
                                                                       : context.tables.find(cache.store, stream)),
      row_bytes_(cache.store.layout->row_bytes),
      staging_(in_place(runs_) ? std::unique_lock<std::mutex>() : context.staging.lock()),
      buffer_rows_(rows_of_a_buffer(context, cache, heads, rows)),
      halves_{{{context, buffer_rows_ * static_cast<std::int64_t>(row_bytes_), stream}, {}, {}},
              {{context, buffer_rows_ * static_cast<std::int64_t>(row_bytes_), stream}, {}, {}}} {
  if (integers()) turned_.emplace(context, buffer_rows_ * 2 * cache.head_dim, stream);
  context_.order(stream_, context_.copies);  // the buffers are theirs from here on
}

RowStream::~RowStream() {
  // The buffers are freed on the stream, which what is being copied into them knows nothing of.
  if (filling_) cudaStreamSynchronize(context_.copies);
}

void RowStream::range(std::int64_t begin, std::int64_t end, const Use& use) {
  const int heads = cache_.kv_heads;
  const std::int64_t block = cache_.store.layout->block_tokens;
  const auto row = [this](int head, std::int64_t at) { return stored_row(head, at); };
  for (; begin < end; begin += chunk_rows(heads)) {
    const std::int64_t to = std::min(begin + chunk_rows(heads), end);
    const auto fill = [&](std::byte* rows) {
      for (const BlockRun& run : runs_) {
        const std::int64_t first = std::max(begin, run.begin * block), last = std::min(to, run.end * block);
        if (first >= last) continue;
        std::byte* const part = rows + static_cast<std::uint64_t>(first - begin) * row_bytes_;
        run.in_place ? copy_blocks(first, last, to - begin, part)
                     : stage({0, heads}, first, last, row, to - begin, part);
      }
    };
    chunk({nullptr, heads, to - begin, begin}, fill, use);
  }
}

void RowStream::lists(const RowLists& lists, const Use& use) {
  std::int64_t longest = 0;
  for (int list = 0; list < lists.lists; ++list) longest = std::max(longest, lists.size(list));
  for (std::int64_t begin = 0; begin < longest; begin += chunk_rows(lists.lists)) {
    const std::int64_t to = std::min(begin + chunk_rows(lists.lists), longest);
    chunk(
        {nullptr, lists.lists, to - begin, begin, lists.positions_on_device, lists.k, lists.sizes_on_device},
        [&](std::byte* rows) { stage_entries(lists, begin, to, rows); }, use);
  }
}

const std::byte* RowStream::stored_row(int head, std::int64_t position) const {
  const offload::BlockLayout& layout = *cache_.store.layout;
  const std::byte* const block = cache_.store.blocks[static_cast<std::size_t>(cache_.store.block_of(position))];
  return layout.row_data(block, head) + static_cast<std::uint64_t>(position & (layout.block_tokens - 1)) * row_bytes_;
}

void RowStream::chunk(StoredRows of, const std::function<void(std::byte* to)>& fill, const Use& use) {
  Half& half = halves_[next_];
  next_ = 1 - next_;
  if (half.in_use) half.used.wait(context_.copies);
  filling_ = true;
  fill(half.rows);
  half.filled.record(context_.copies);
  half.filled.wait(stream_);
  filling_ = false;
  const f16* rows = reinterpret_cast<const f16*>(half.rows.data());
  if (integers()) {
    of.data = half.rows;
    read_rows(store_, of, *turned_, stream_);
    rows = *turned_;
  }
  use({rows, of.rows, 0, of.begin}, of.begin, of.begin + of.rows);
  half.used.record(stream_);
  half.in_use = true;
}

// All heads' rows of a block's share in one copy.
void RowStream::copy_blocks(std::int64_t begin, std::int64_t end, std::int64_t pitch, std::byte* to) {
  const offload::BlockLayout& layout = *cache_.store.layout;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t block = at / layout.block_tokens;
    const std::int64_t next = std::min(end, (block + 1) * layout.block_tokens);
    copy_rows_to_device(context_.pins, to + static_cast<std::uint64_t>(at - begin) * row_bytes_,
                        static_cast<std::uint64_t>(pitch) * row_bytes_, stored_row(0, at), layout.head_bytes,
                        static_cast<std::uint64_t>(next - at) * row_bytes_, static_cast<std::uint64_t>(cache_.kv_heads),
                        context_.copies);
    at = next;
  }
}

// Stages those of the entries [begin, end) of each list that lie in blocks to be staged. Lists of which they are the
// same entries are copied together.
void RowStream::stage_entries(const RowLists& lists, std::int64_t begin, std::int64_t end, std::byte* to) {
  const int lists_per_head = lists.lists / cache_.kv_heads;
  const auto entries = [&](int list) { return lists.positions + static_cast<std::int64_t>(list) * lists.k; };
  const auto row = [&](int list, std::int64_t at) { return stored_row(list / lists_per_head, entries(list)[at]); };
  for (const BlockRun& run : runs_) {
    if (run.in_place) continue;
    const auto in_run = [&](int list) {
      const std::int32_t* const all = entries(list);
      const std::int64_t first = std::min(begin, lists.size(list)), last = std::min(end, lists.size(list));
      const auto from = [&](std::int64_t block) {
        return std::lower_bound(all + first, all + last, block * cache_.store.layout->block_tokens) - all;
      };
      return std::pair(from(run.begin), from(run.end));
    };
    for (Heads same{0, 0}; same.begin < lists.lists; same.begin = same.end) {
      const auto [first, last] = in_run(same.begin);
      same.end = same.begin + 1;
      while (same.end < lists.lists && in_run(same.end) == std::pair(first, last)) ++same.end;
      if (first >= last) continue;
      stage(same, first, last, row, end - begin, to + static_cast<std::uint64_t>(first - begin) * row_bytes_);
    }
  }
}

// A piece of the ring takes some rows of each of some heads, [heads][rows].
void RowStream::stage(Heads heads, std::int64_t begin, std::int64_t end, const Address& address, std::int64_t pitch,
                      std::byte* to) {
  StagingRing& ring = context_.staging;
  const std::uint64_t bytes = row_bytes_;
  const auto piece_rows = static_cast<std::int64_t>(ring.piece_bytes() / bytes);
  const int piece_heads = static_cast<int>(std::min<std::int64_t>(heads.end - heads.begin, piece_rows));
  for (int head = heads.begin; head < heads.end; head += piece_heads) {
    const int h = std::min(piece_heads, heads.end - head);
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t n = std::min(piece_rows / h, end - at);
      std::byte* const piece = ring.acquire();
      context_.threads.parallel_for(h * n, kStagedRows, [&](std::int64_t from, std::int64_t until) {
        for (std::int64_t i = from; i < until; ++i) {
          std::memcpy(piece + static_cast<std::uint64_t>(i) * bytes,
                      address(head + static_cast<int>(i / n), at + i % n), bytes);
        }
      });
      const std::uint64_t width = static_cast<std::uint64_t>(n) * bytes;
      HAYLOFT_CUDA(cudaMemcpy2DAsync(to + static_cast<std::uint64_t>(head * pitch + at - begin) * bytes,
                                     static_cast<std::uint64_t>(pitch) * bytes, piece, width, width,
                                     static_cast<std::size_t>(h), cudaMemcpyHostToDevice, in_order(context_.copies)));
      ring.release(context_.copies);
      at += n;
    }
  }
}

}  // namespace hayloft::gpu::cuda
