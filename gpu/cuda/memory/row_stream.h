#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/backend.h"
#include "gpu/cuda/api/stream.h"
#include "gpu/cuda/context.h"
#include "gpu/cuda/memory/dense_rows.h"
#include "gpu/cuda/memory/read_rows.h"
#include "gpu/cuda/memory/store_tables.h"

namespace hayloft::gpu::cuda {

// Lists of positions in the store, ascending, whole multiples of Hkv of them; the pointers are to host memory, and to
// the same in device memory.
struct RowLists {
  const std::int32_t* positions = nullptr;  // i32 [lists][k]
  const std::int32_t* positions_on_device = nullptr;
  const std::int32_t* sizes = nullptr;  // i32 [lists], how many of each; null: all
  const std::int32_t* sizes_on_device = nullptr;
  int lists = 0;
  int k = 0;

  std::int64_t size(int list) const { return sizes ? sizes[list] : k; }
};

// Brings rows of the store to device memory, chunk by chunk through two buffers: while one is used, the copy engine
// fills the other. Integer rows are copied as they are stored, and turned into f16 in a third. Rows of pinned blocks
// are copied from where they lie and the host waits for nothing; all others go through the staging ring, filled by host
// threads, whose lock is held until the stream is done with. When an error leaves a chunk half filled, the destructor
// waits for the copies.
class RowStream {
 public:
  // Queues work that reads `rows` on the operation's stream. [begin, end) are positions for range(), entries for
  // lists().
  using Use = std::function<void(const DenseRows& rows, std::int64_t begin, std::int64_t end)>;

  // heads: how many lists or KV heads the widest pass takes side by side; rows: the most that one of them has in all
  // passes. They bound the buffers, which otherwise are a share of what is left of the device's budget. Throws Error
  // when a row per head does not fit.
  RowStream(const Context& context, const CacheView& cache, int heads, std::int64_t rows, cudaStream_t stream);
  ~RowStream();
  RowStream(const RowStream&) = delete;
  RowStream& operator=(const RowStream&) = delete;

  // Returns how many rows of each of so many heads a chunk holds; the last chunk of a pass may have fewer.
  std::int64_t chunk_rows(int heads) const { return buffer_rows_ / heads; }

  // Positions [begin, end) of the store, of every KV head: DenseRows of Hkv heads.
  void range(std::int64_t begin, std::int64_t end, const Use& use);
  // The rows that lists name, as far as they lie in blocks that the device does not reach: DenseRows of so many heads
  // whose positions are the entries' numbers, with undefined contents where an entry lies in a block that it does, and
  // behind the end of a list.
  void lists(const RowLists& lists, const Use& use);

 private:
  struct Half {
    Scratch<std::byte> rows;  // [heads][rows of a chunk][row_bytes]
    Event filled;
    Event used;
    bool in_use = false;
  };
  using Address = std::function<const std::byte*(int head, std::int64_t at)>;
  struct Heads {  // [begin, end)
    int begin;
    int end;
  };

  // Returns what `of` says of the chunk as it is copied, but for where.
  void chunk(StoredRows of, const std::function<void(std::byte* to)>& fill, const Use& use);
  // Rows [begin, end) of each head, which lie `pitch` rows apart at `to`.
  void copy_blocks(std::int64_t begin, std::int64_t end, std::int64_t pitch, std::byte* to);
  void stage(Heads heads, std::int64_t begin, std::int64_t end, const Address& address, std::int64_t pitch,
             std::byte* to);
  void stage_entries(const RowLists& lists, std::int64_t begin, std::int64_t end, std::byte* to);
  const std::byte* stored_row(int head, std::int64_t position) const;
  bool integers() const { return store_.row_format != offload::RowFormat::f16; }

  const Context& context_;
  const CacheView& cache_;
  cudaStream_t stream_;
  std::vector<BlockRun> runs_;            // of the store
  DeviceStore store_;                     // where its rows are integers
  std::uint64_t row_bytes_;               // as they are stored
  std::unique_lock<std::mutex> staging_;  // held when not all of them are read in place
  std::int64_t buffer_rows_;
  Half halves_[2];
  std::optional<Scratch<f16>> turned_;  // [heads][rows of a chunk][2 d], of integer rows
  int next_ = 0;
  bool filling_ = false;  // copies may be under way that the stream does not wait for yet
};

}  // namespace hayloft::gpu::cuda
