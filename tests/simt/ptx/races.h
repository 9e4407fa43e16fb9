#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hayloft::simt::ptx {

// Finds accesses of one block to shared memory that nothing orders: two threads, one of which writes, without a barrier
// of the block between them, or one of their warp when they are of one. Two atomics are no race. Shuffles and votes
// order no memory. Every byte remembers its last write and the reads since.
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

  void read(const Place& place, std::size_t address, unsigned bytes);
  void write(const Place& place, std::size_t address, unsigned bytes, bool atomic);

 private:
  static constexpr unsigned nobody = ~0u;
  enum class Others : std::uint8_t { none, same_warp, other_warps };  // readers besides `reader` since the barrier
  struct Byte {
    Place writer{nobody, 0};
    Place reader{nobody, 0};
    unsigned written = 0;  // barriers_ at the time
    unsigned read = 0;
    bool atomic = false;
    Others others = Others::none;
  };

  bool ordered(const Place& before, unsigned barriers, const Place& after) const;

  std::vector<Byte> bytes_;
  unsigned barriers_ = 0;
};

}  // namespace hayloft::simt::ptx
