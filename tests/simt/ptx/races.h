#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "tests/simt/ptx/opcodes/opcodes.h"

namespace hayloft::simt::ptx {

enum class Races : std::uint8_t {
  ignored,
  shared,  // in shared memory
  all,     // in global memory as well; takes several times as long
};

// Finds accesses of a launch that nothing orders: two threads, one of which writes, of one block without a barrier of
// the block between them, or one of their warp when they are of one; or of two blocks. Two atomics are no race.
// Shuffles and votes order no memory. Every byte remembers its last write and the reads since.
//
// It takes what a block has done before a barrier to come before what another does behind one, where a thread of the
// first has a fence behind that barrier and then an atomic, and one of the other an atomic at the same address, later,
// and then a fence before its barrier.
//
// read() and write() throw Fault for the second of the two threads, which names the first. One launch at a time.
class RaceDetector {
 public:
  struct Place {
    unsigned thread;         // in the block
    unsigned warp_barriers;  // that its warp has passed
  };

  RaceDetector();  // of a launch

  void begin_block(std::size_t shared_bytes);
  void pass_barrier();  // of the block, all threads

  // Enters an access, which is aligned to its size, a power of two of at most 16 bytes.
  void read(Space space, const Place& place, std::uint64_t address, unsigned bytes);
  void write(Space space, const Place& place, std::uint64_t address, unsigned bytes, bool atomic);
  void fence(const Place& place);

 private:
  // Readers besides the last one, since the barrier; those of other blocks since the beginning.
  enum class Others : std::uint8_t { none, same_warp, other_warps, other_blocks };
  // Barriers of blocks and beginnings of blocks and launches are moments, counted through in one process: what has been
  // remembered before this launch, or in shared memory before this block, need not be forgotten.
  struct Access {
    std::uint32_t moment;
    std::uint32_t thread : 10;
    std::uint32_t warp_barriers : 20;  // their lower bits: of two at one moment only whether they are equal matters
    std::uint32_t detail : 2;          // of a write whether it is atomic, of a read the Others
  };
  struct Byte {
    Access written;
    Access read;
  };
  struct Memory;
  static Memory& memory();
  // The moments [first, last) of a block.
  struct Span {
    std::uint32_t first;
    std::uint32_t last;
  };
  using Spans = std::vector<Span>;

  Byte* bytes_at(Space space, std::uint64_t address);
  std::uint32_t first_moment(Space space) const { return space == Space::shared ? block_ : launch_; }
  Access access(const Place& place, std::uint32_t detail) const;
  bool ordered(const Access& before, const Access& after, std::uint32_t first) const;
  void read(Byte& now, Space space, const Place& place, std::uint64_t address) const;
  void write(Byte& now, Space space, const Place& place, std::uint64_t address, bool atomic) const;
  void meet_others(const Place& place, std::uint64_t address);
  [[noreturn]] void report(const char* what, Space space, const Place& place, std::uint64_t address, const char* how,
                           const Access& before) const;

  Memory& memory_;
  // These are the moments at which each began.
  std::uint32_t launch_;
  std::uint32_t block_;
  std::uint32_t now_;
  std::unordered_map<std::uint64_t, Spans> told_{};  // of what has been done when an atomic came to an address
  // These are this block's.
  std::unordered_map<std::uint32_t, std::uint32_t> fences_{};  // the moment of each thread's last one
  std::unordered_map<std::uint32_t, Spans> heard_{};           // by threads whose fence is still to come
  Spans arriving_{};                                           // at the next barrier
  Spans known_{};
};

}  // namespace hayloft::simt::ptx
