#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/host/topology.h"

namespace hayloft::offload {

class Arena;
class ArenaState;

// Owns a piece of an arena's memory and gives it back when destroyed. Movable, empty when default-constructed or moved
// from.
class Extent {
 public:
  Extent() = default;
  Extent(Extent&& other) noexcept;
  Extent& operator=(Extent&& other) noexcept;
  ~Extent();

  std::byte* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class Arena;
  Extent(std::shared_ptr<ArenaState> state, std::byte* data, std::uint64_t bytes);
  std::shared_ptr<ArenaState> state_;  // the arena's memory outlives its last extent
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// Told about memory as it is committed and before it is released, in whole chunks; a device backend pins it here and
// may touch it from the threads of the owning NUMA node first. Called one at a time, while the arena is locked: a
// listener must not use the arena.
class ChunkListener {
 public:
  virtual ~ChunkListener() = default;
  virtual void committed(std::byte* data,
                         std::uint64_t bytes) = 0;  // may throw Error: the allocation then fails with it
  virtual void releasing(std::byte* data, std::uint64_t bytes) noexcept = 0;
};

// The budget of an arena and how it takes memory from the system.
struct ArenaOptions {
  std::uint64_t budget_bytes = 0;                      // 0: Topology::available_bytes() at construction, less a tenth
  std::string budget_option = "--host-memory";         // what an out-of-budget error tells the user to change
  std::uint64_t chunk_bytes = std::uint64_t{1} << 30;  // of memory committed at a time; never above 64 GiB
  std::shared_ptr<ChunkListener> listener = nullptr;
};

// Budgeted host memory for K and V. Commits memory chunk by chunk (1 GiB or 2 MiB pages where the system has free
// ones, else transparent huge pages), and hands out page-aligned, zeroed extents. Chunks together never exceed the
// budget. An extent lies within one chunk, so that it is pinned as one piece; one larger than chunk_bytes gets a chunk
// of its own, and many that are asked for at once get larger chunks. Freed extents are used again; ordinary pages
// without a listener go back to the system meanwhile. Thread-safe.
class Arena {
 public:
  static constexpr std::uint64_t alignment = 4096;

  explicit Arena(const Topology& topology, ArenaOptions options = {});
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Throws Error, saying what was asked, what is left and which option to change, when the budget or the system's
  // memory is exhausted; nothing is lost and smaller requests may still succeed. bytes is rounded up to `alignment`; 0
  // bytes is an empty extent.
  Extent allocate(std::uint64_t bytes);

  // As many of the same size, all or none, behind one another as far as free memory allows: where it is committed for
  // them, up to 16 chunk_bytes of them are pinned as one piece (chunk_bytes where the system has free huge pages, of
  // which there may be few), so that one copy of a device can bring in pieces of many.
  std::vector<Extent> allocate(std::uint64_t bytes, std::size_t count);

  std::uint64_t budget_bytes() const;
  std::uint64_t used_bytes() const;  // of all extents alive
  std::uint64_t peak_bytes() const;  // the most that used_bytes() has been

 private:
  std::shared_ptr<ArenaState> state_;
};

}  // namespace hayloft::offload
