#include "tests/simt/ptx/races.h"

#include <fmt/format.h>

#include "tests/simt/ptx/warp.h"

namespace hayloft::simt::ptx {
namespace {

unsigned warp_of(unsigned thread) {
  return thread / kLanes;
}

[[noreturn]] void report(const char* what, const RaceDetector::Place& place, std::size_t address, const char* how,
                         unsigned other) {
  throw Fault(place.thread % kLanes, fmt::format("race: {} of shared memory at {:#x}, {} by thread {} with no barrier "
                                                 "between",
                                                 what, address, how, other));
}

}  // namespace

void RaceDetector::begin_block(std::size_t shared_bytes) {
  bytes_.assign(shared_bytes, {});
  barriers_ = 0;
}

bool RaceDetector::ordered(const Place& before, unsigned barriers, const Place& after) const {
  if (before.thread == nobody || before.thread == after.thread || barriers != barriers_) return true;
  return warp_of(before.thread) == warp_of(after.thread) && before.warp_barriers != after.warp_barriers;
}

void RaceDetector::read(const Place& place, std::size_t address, unsigned bytes) {
  for (std::size_t at = address; at < address + bytes; ++at) {
    Byte& byte = bytes_[at];
    if (!ordered(byte.writer, byte.written, place)) report("a read", place, at, "written", byte.writer.thread);
    const bool first = byte.reader.thread == nobody || byte.read != barriers_;
    if (first) {
      byte.others = Others::none;
    } else if (warp_of(byte.reader.thread) != warp_of(place.thread)) {
      byte.others = Others::other_warps;
    } else if (byte.others != Others::other_warps) {
      // A barrier of the warp orders all that its lanes have read before.
      if (byte.reader.warp_barriers != place.warp_barriers)
        byte.others = Others::none;
      else if (byte.reader.thread != place.thread)
        byte.others = Others::same_warp;
    }
    byte.reader = place;
    byte.read = barriers_;
  }
}

void RaceDetector::write(const Place& place, std::size_t address, unsigned bytes, bool atomic) {
  for (std::size_t at = address; at < address + bytes; ++at) {
    Byte& byte = bytes_[at];
    if (!(atomic && byte.atomic) && !ordered(byte.writer, byte.written, place)) {
      report("a write", place, at, "written", byte.writer.thread);
    }
    if (byte.reader.thread != nobody && byte.read == barriers_) {
      const bool apart = warp_of(byte.reader.thread) != warp_of(place.thread);
      const bool unordered = apart || byte.reader.warp_barriers == place.warp_barriers;
      if (byte.others == Others::other_warps || (byte.others == Others::same_warp && unordered) ||
          !ordered(byte.reader, byte.read, place)) {
        report("a write", place, at, "read", byte.reader.thread);
      }
    }
    byte.writer = place;
    byte.written = barriers_;
    byte.atomic = atomic;
  }
}

}  // namespace hayloft::simt::ptx
