#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace hayloft::simt {

enum class MemoryPlace : std::uint8_t { pageable, pinned, device };

// Fills memory that nobody has written with 0xff, NaN as f32 and f16 and -1 as an integer. What is large gets its pages
// from a file of such bytes, each when it is first touched: most never are. Such pieces are of the address sanitizer's
// heap, which gives them back to the system when they are freed and never uses their pages again.
void fill_unwritten(void* data, std::size_t bytes);

// Knows who owns which addresses. Device memory comes from the heap, between the address sanitizer's red zones, and is
// poisoned except while open: only the operations of streams open it.
class Memory {
 public:
  // Memory of a device, aligned as CUDA's. It is usable (when open) from begin() on. Null when the system has no more.
  void* allocate(std::size_t bytes, int device);
  void begin(void* data);
  bool release(void* data);  // false: not the beginning of an allocation

  bool pin(void* data, std::size_t bytes, bool owned);  // false: overlaps what is pinned
  bool unpin(void* data, bool owned);                   // false: not the beginning of such a piece

  // Returns where all of [data, data + bytes) lies. Throws std::out_of_range when it is not all in one piece, or all
  // outside of every piece: CUDA takes no range that lies partly in registered memory, or in memory registered by two
  // calls.
  MemoryPlace place(const void* data, std::size_t bytes) const;

  // The piece of device memory that is usable, or of pinned memory, that holds this address: [first, second) is where a
  // kernel may reach. Both 0 when none does.
  std::pair<std::uintptr_t, std::uintptr_t> reachable(std::uintptr_t address) const;

  int device_of(const void* data) const;  // whose memory it is; -1: no device's

  void open();
  void close();

  std::uint64_t device_bytes() const;
  std::uint64_t device_bytes(int device) const;
  std::uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  struct Piece {
    std::size_t bytes = 0;
    bool usable = true;
    bool owned = false;  // pinned memory that CUDA allocated
    int device = -1;
  };
  using Pieces = std::map<std::uintptr_t, Piece>;
  static const Pieces::value_type* find(const Pieces& pieces, std::uintptr_t address);

  Pieces device_;
  Pieces pinned_;
  std::map<int, std::uint64_t> device_bytes_;
  std::uint64_t pinned_bytes_ = 0;
  int opened_ = 0;
};

}  // namespace hayloft::simt
