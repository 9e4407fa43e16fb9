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
// read() and write() throw Fault for the second of the two threads, which names the first.
class RaceDetector {
 public:
  struct Place {
    unsigned thread;         // in the block
    unsigned warp_barriers;  // that its warp has passed
  };

  void begin_block(std::size_t shared_bytes);
  void pass_barrier() { ++barriers_; }  // of the block, all threads

  void read(Space space, const Place& place, std::uint64_t address, unsigned bytes);
  void write(Space space, const Place& place, std::uint64_t address, unsigned bytes, bool atomic);

 private:
  static constexpr unsigned nobody = ~0u;
  // Readers besides the last one, since the barrier; those of other blocks since the beginning.
  enum class Others : std::uint8_t { none, same_warp, other_warps, other_blocks };
  struct Access {
    Place by{nobody, 0};
    unsigned block = 0;     // blocks_ at the time
    unsigned barriers = 0;  // barriers_ at the time
  };
  struct Byte {
    Access written{};
    Access read{};
    bool atomic = false;  // the write
    Others others = Others::none;
  };
  static constexpr std::uint64_t line_bytes = 64;

  Byte& byte(Space space, std::uint64_t address);
  bool ordered(const Access& before, const Place& after) const;
  [[noreturn]] void report(const char* what, Space space, const Place& place, std::uint64_t address, const char* how,
                           const Access& before) const;

  std::vector<Byte> shared_;
  std::unordered_map<std::uint64_t, std::array<Byte, line_bytes>> global_;  // by address / line_bytes
  unsigned blocks_ = 0;                                                     // that have begun
  unsigned barriers_ = 0;
};

}  // namespace hayloft::simt::ptx
