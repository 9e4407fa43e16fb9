#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/simt/ptx/module/kernel.h"

namespace hayloft::simt::ptx {

class AddressSpaces;

// A lane did something that no device does, or none reliably.
struct Fault : std::runtime_error {
  Fault(unsigned lane_, const std::string& what) : std::runtime_error(what), lane(lane_) {}
  unsigned lane;
};

// 32 threads of a block: their registers, where each is and what it waits for.
class Warp {
 public:
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  using Registers = std::vector<Line>;

  // `registers` may be those of a warp before, of any kernel, whose memory is used again.
  Warp(const Kernel& kernel, AddressSpaces& spaces, unsigned in_block, unsigned threads, Registers registers = {})
      : memory(spaces),
        number(in_block),
        existing(threads == kLanes ? ~Mask{0} : (Mask{1} << threads) - 1),
        lines_(kernel.register_bytes / sizeof(Line) + 1),
        registers_(std::move(registers)) {
    registers_.resize(std::max(registers_.size(), lines_));
  }
  Registers take_registers() { return std::move(registers_); }

  template <class T>
  T* lanes(Register of) {  // 32
    return reinterpret_cast<T*>(registers_.data()->bytes.data() + of.offset);
  }
  Mask& predicate(unsigned offset) { return *lanes<Mask>({offset}); }

  // One lane of a register of any width, as bits.
  std::uint64_t bits(Register of, unsigned lane) {
    switch (of.bytes) {
      case 0:
        return predicate(of.offset) >> lane & 1;
      case 2:
        return lanes<std::uint16_t>(of)[lane];
      case 4:
        return lanes<std::uint32_t>(of)[lane];
      case 8:
        return lanes<std::uint64_t>(of)[lane];
      default:
        return lanes<std::uint8_t>(of)[lane];
    }
  }
  void set_bits(Register of, unsigned lane, std::uint64_t bits) {
    switch (of.bytes) {
      case 0:
        predicate(of.offset) = (predicate(of.offset) & ~(Mask{1} << lane)) | static_cast<Mask>(bits & 1) << lane;
        return;
      case 2:
        lanes<std::uint16_t>(of)[lane] = static_cast<std::uint16_t>(bits);
        return;
      case 4:
        lanes<std::uint32_t>(of)[lane] = static_cast<std::uint32_t>(bits);
        return;
      case 8:
        lanes<std::uint64_t>(of)[lane] = bits;
        return;
      default:
        lanes<std::uint8_t>(of)[lane] = static_cast<std::uint8_t>(bits);
    }
  }
  void fill_registers(std::byte with) {
    for (std::size_t i = 0; i < lines_; ++i) registers_[i].bytes.fill(with);
  }

  AddressSpaces& memory;
  const unsigned number;  // in the block
  const Mask existing;    // lanes that are threads

  // Every existing lane is in one of these.
  Mask running = 0;
  Mask at_meeting = 0;  // of the warp, at the instruction of its pc
  Mask at_barrier = 0;  // of the block, likewise
  Mask exited = 0;
  std::array<unsigned, kLanes> pc{};

  unsigned barriers = 0;  // bar.warp.sync that have been passed

  // Copies to shared memory that a lane has begun and not waited for.
  struct Copy {
    std::uint64_t to;
    std::array<std::byte, 16> data;
  };
  std::array<std::vector<Copy>, kLanes> copies;

 private:
  std::size_t lines_;  // that the kernel uses
  Registers registers_;
};

// body(lane) for the lanes of the mask.
template <class Body>
void for_each_lane(Mask lanes, Body&& body) {
  for (; lanes != 0; lanes &= lanes - 1) body(static_cast<unsigned>(std::countr_zero(lanes)));
}

}  // namespace hayloft::simt::ptx
