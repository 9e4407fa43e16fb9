#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tests/simt/ptx/opcodes/opcodes.h"
#include "tests/simt/ptx/races.h"
#include "tests/simt/ptx/traffic.h"

namespace hayloft::simt::ptx {

class Warp;

struct AddressRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool pinned = false;  // of host memory
};

// Says what addresses of the device mean during a launch. Global memory are device memory and pinned host memory, at
// the addresses that the host knows; shared memory begins at 0 with the static variables. All accesses are aligned to
// their size and lie in one piece, or are a Fault of the lane.
class AddressSpaces {
 public:
  // The piece of global memory that holds an address; empty when none does.
  using FindPiece = std::function<AddressRange(std::uint64_t address)>;

  // `traffic`, where there is one, is told of every access to global and shared memory.
  AddressSpaces(std::span<std::byte> parameters, std::size_t shared_bytes, FindPiece find_piece, Races races,
                TrafficCounter* traffic = nullptr)
      : parameters_(parameters),
        shared_(shared_bytes),
        find_piece_(std::move(find_piece)),
        races_(races),
        traffic_(traffic) {}

  void begin_block();   // shared memory is full of NaN
  void pass_barrier();  // of all threads of the block
  void fence(const Warp& warp, unsigned lane);
  void end_access() {  // of one instruction of one warp
    if (traffic_) traffic_->end_access();
  }

  enum class Access : std::uint8_t { read, write, atomic, arrival };  // the last of what was written before
  std::byte* at(Space space, std::uint64_t address, unsigned bytes, Access access, const Warp& warp, unsigned lane);

 private:
  void note(Space space, std::uint64_t address, unsigned bytes, Access access, const Warp& warp, unsigned lane);
  const AddressRange& piece(std::uint64_t address, unsigned bytes, unsigned lane);

  std::span<std::byte> parameters_;
  std::vector<std::byte> shared_;
  FindPiece find_piece_;
  Races races_;
  TrafficCounter* traffic_;
  RaceDetector detector_;
  std::array<AddressRange, 4> recent_{};
  unsigned next_ = 0;
};

}  // namespace hayloft::simt::ptx
