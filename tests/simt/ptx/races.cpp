#include "tests/simt/ptx/races.h"

#include <fmt/format.h>

#include "tests/simt/ptx/warp.h"

namespace hayloft::simt::ptx {
namespace {

unsigned warp_of(unsigned thread) {
  return thread / kLanes;
}

}  // namespace

void RaceDetector::report(const char* what, Space space, const Place& place, std::uint64_t address, const char* how,
                          const Access& before) const {
  const char* const memory = space == Space::shared ? "shared" : "global";
  const char* const block = before.block == blocks_ ? "" : " of another block";
  throw Fault(place.thread % kLanes,
              fmt::format("race: {} of {} memory at {:#x}, {} by thread {}{} with no barrier between", what, memory,
                          address, how, before.by.thread, block));
}

void RaceDetector::begin_block(std::size_t shared_bytes) {
  shared_.assign(shared_bytes, {});
  barriers_ = 0;
  ++blocks_;
}

RaceDetector::Byte& RaceDetector::byte(Space space, std::uint64_t address) {
  return space == Space::shared ? shared_[address] : global_[address / line_bytes][address % line_bytes];
}

bool RaceDetector::ordered(const Access& before, const Place& after) const {
  if (before.by.thread == nobody) return true;
  if (before.block != blocks_) return false;
  if (before.by.thread == after.thread || before.barriers != barriers_) return true;
  return warp_of(before.by.thread) == warp_of(after.thread) && before.by.warp_barriers != after.warp_barriers;
}

void RaceDetector::read(Space space, const Place& place, std::uint64_t address, unsigned bytes) {
  for (std::uint64_t at = address; at < address + bytes; ++at) {
    Byte& now = byte(space, at);
    if (!ordered(now.written, place)) report("a read", space, place, at, "written", now.written);
    const Access& last = now.read;
    if (last.by.thread != nobody && (last.block != blocks_ || now.others == Others::other_blocks)) {
      now.others = Others::other_blocks;
    } else if (last.by.thread == nobody || last.barriers != barriers_) {
      now.others = Others::none;
    } else if (warp_of(last.by.thread) != warp_of(place.thread)) {
      now.others = Others::other_warps;
    } else if (now.others != Others::other_warps) {
      // A barrier of the warp orders all that its lanes have read before.
      if (last.by.warp_barriers != place.warp_barriers) {
        now.others = Others::none;
      } else if (last.by.thread != place.thread) {
        now.others = Others::same_warp;
      }
    }
    now.read = {place, blocks_, barriers_};
  }
}

void RaceDetector::write(Space space, const Place& place, std::uint64_t address, unsigned bytes, bool atomic) {
  for (std::uint64_t at = address; at < address + bytes; ++at) {
    Byte& now = byte(space, at);
    if (!(atomic && now.atomic) && !ordered(now.written, place)) {
      report("a write", space, place, at, "written", now.written);
    }
    const Access& last = now.read;
    bool raced = !ordered(last, place) || now.others == Others::other_blocks;
    if (last.by.thread != nobody && last.barriers == barriers_) {
      const bool same_warp = warp_of(last.by.thread) == warp_of(place.thread);
      raced |= now.others == Others::other_warps;
      raced |= now.others == Others::same_warp && !(same_warp && last.by.warp_barriers != place.warp_barriers);
    }
    if (raced) report("a write", space, place, at, "read", last);
    now.written = {place, blocks_, barriers_};
    now.atomic = atomic;
  }
}

}  // namespace hayloft::simt::ptx
