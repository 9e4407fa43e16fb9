#include "tests/simt/ptx/address_spaces.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/simt/ptx/warp.h"

namespace hayloft::simt::ptx {
namespace {

void require_within(const char* what, std::uint64_t address, unsigned bytes, std::size_t size, unsigned lane) {
  if (address <= size && bytes <= size - address) return;
  throw Fault(lane, fmt::format("{} bytes at {:#x} of {}, which has {}", bytes, address, what, size));
}

}  // namespace

void AddressSpaces::begin_block() {
  std::fill(shared_.begin(), shared_.end(), std::byte{0xff});
  if (races_ != Races::ignored) detector_.begin_block(shared_.size());
}

void AddressSpaces::pass_barrier() {
  detector_.pass_barrier();
}

void AddressSpaces::fence(const Warp& warp, unsigned lane) {
  if (races_ == Races::all) detector_.fence({warp.number * kLanes + lane, warp.barriers});
}

void AddressSpaces::note(Space space, std::uint64_t address, unsigned bytes, Access access, const Warp& warp,
                         unsigned lane) {
  const RaceDetector::Place place{warp.number * kLanes + lane, warp.barriers};
  if (access == Access::read) {
    detector_.read(space, place, address, bytes);
  } else {
    detector_.write(space, place, address, bytes, access == Access::atomic);
  }
}

const AddressRange& AddressSpaces::piece(std::uint64_t address, unsigned bytes, unsigned lane) {
  for (const AddressRange& range : recent_) {
    if (address >= range.begin && address < range.end && bytes <= range.end - address) return range;
  }
  const AddressRange range = find_piece_(address);
  if (range.begin == range.end) {
    throw Fault(lane, fmt::format("{:#x} is neither device memory nor pinned host memory", address));
  }
  if (bytes > range.end - address) {
    throw Fault(lane, fmt::format("{} bytes at {:#x} reach past the end of a piece of {} bytes", bytes, address,
                                  range.end - range.begin));
  }
  AddressRange& kept = recent_[next_++ % recent_.size()];
  kept = range;
  return kept;
}

std::byte* AddressSpaces::at(Space space, std::uint64_t address, unsigned bytes, Access access, const Warp& warp,
                             unsigned lane) {
  if (address % bytes != 0) throw Fault(lane, fmt::format("misaligned address {:#x} of {} bytes", address, bytes));
  switch (space) {
    case Space::param:
      require_within("the parameters", address, bytes, parameters_.size(), lane);
      return parameters_.data() + address;
    case Space::shared:
      require_within("shared memory", address, bytes, shared_.size(), lane);
      if (races_ != Races::ignored) note(space, address, bytes, access, warp, lane);
      if (traffic_ && access != Access::arrival)
        traffic_->note(TrafficCounter::Place::shared, address, bytes, access != Access::read, lane);
      return shared_.data() + address;
    case Space::global:
    case Space::generic: {
      if (races_ == Races::all) note(Space::global, address, bytes, access, warp, lane);
      const AddressRange& found = piece(address, bytes, lane);
      if (traffic_) {
        traffic_->note(found.pinned ? TrafficCounter::Place::pinned : TrafficCounter::Place::device, address, bytes,
                       access != Access::read, lane);
      }
      return reinterpret_cast<std::byte*>(address);
    }
  }
  return nullptr;
}

}  // namespace hayloft::simt::ptx
