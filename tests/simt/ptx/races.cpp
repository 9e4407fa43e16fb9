#include "tests/simt/ptx/races.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "tests/simt/ptx/warp.h"

namespace hayloft::simt::ptx {
namespace {

std::uint32_t warp_of(std::uint32_t thread) {
  return thread / kLanes;
}

}  // namespace

// Remembers accesses to every byte, from launch to launch: to make it anew for each would take most of the time.
struct RaceDetector::Memory {
  static constexpr std::size_t page_bytes = 1024;
  static constexpr std::size_t most_pages = 8192;  // 128 MiB of what is remembered
  using Page = std::array<Byte, page_bytes>;

  std::vector<Byte> shared{};
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>> global{};  // by address / page_bytes
  struct Found {
    std::uint64_t number = ~std::uint64_t{0};
    Page* page = nullptr;
  };
  std::array<Found, 256> recent{};
  std::uint32_t moment = 0;

  Page& page(std::uint64_t number) {
    Found& found = recent[number % recent.size()];
    if (found.number != number) {
      std::unique_ptr<Page>& page = global[number];
      if (!page) page = std::make_unique<Page>();
      found = {number, page.get()};
    }
    return *found.page;
  }
};

RaceDetector::Memory& RaceDetector::memory() {
  static Memory memory;
  return memory;
}

RaceDetector::RaceDetector() : memory_(memory()), launch_(++memory_.moment), block_(launch_), now_(launch_) {
  if (memory_.global.size() <= Memory::most_pages) return;
  memory_.global.clear();
  memory_.recent.fill({});
}

void RaceDetector::begin_block(std::size_t shared_bytes) {
  if (memory_.shared.size() < shared_bytes) memory_.shared.resize(shared_bytes);
  block_ = now_ = ++memory_.moment;
  fences_.clear();
  heard_.clear();
  arriving_.clear();
  known_.clear();
}

void RaceDetector::pass_barrier() {
  now_ = ++memory_.moment;
  known_.insert(known_.end(), arriving_.begin(), arriving_.end());
  arriving_.clear();
}

void RaceDetector::fence(const Place& place) {
  fences_[place.thread] = now_;
  const auto found = heard_.find(place.thread);
  if (found == heard_.end()) return;
  arriving_.insert(arriving_.end(), found->second.begin(), found->second.end());
  heard_.erase(found);
}

// Enters an atomic, by which blocks tell each other what they have done.
void RaceDetector::meet_others(const Place& place, std::uint64_t address) {
  const auto told = told_.find(address);
  if (told != told_.end()) {
    Spans& heard = heard_[place.thread];
    heard.insert(heard.end(), told->second.begin(), told->second.end());
  }
  const auto fenced = fences_.find(place.thread);
  if (fenced == fences_.end()) return;
  Spans& tells = told_[address];
  tells.push_back({block_, fenced->second});
  tells.insert(tells.end(), known_.begin(), known_.end());
}

RaceDetector::Byte* RaceDetector::bytes_at(Space space, std::uint64_t address) {
  if (space == Space::shared) return &memory_.shared[address];
  return &memory_.page(address / Memory::page_bytes)[address % Memory::page_bytes];
}

RaceDetector::Access RaceDetector::access(const Place& place, std::uint32_t detail) const {
  return {now_, place.thread & 0x3ffU, place.warp_barriers & 0xfffffU, detail & 3U};
}

void RaceDetector::report(const char* what, Space space, const Place& place, std::uint64_t address, const char* how,
                          const Access& before) const {
  const char* const memory = space == Space::shared ? "shared" : "global";
  const char* const block = before.moment >= block_ ? "" : " of another block";
  throw Fault(place.thread % kLanes,
              fmt::format("race: {} of {} memory at {:#x}, {} by thread {}{} with no barrier between", what, memory,
                          address, how, static_cast<unsigned>(before.thread), block));
}

// Returns whether something orders two accesses. Before moment `first` there was none.
bool RaceDetector::ordered(const Access& before, const Access& after, std::uint32_t first) const {
  if (before.moment < first) return true;
  if (before.moment < block_) {
    return std::any_of(known_.begin(), known_.end(),
                       [&](const Span& span) { return before.moment >= span.first && before.moment < span.last; });
  }
  if (before.thread == after.thread || before.moment != now_) return true;
  return warp_of(before.thread) == warp_of(after.thread) && before.warp_barriers != after.warp_barriers;
}

void RaceDetector::read(Byte& now, Space space, const Place& place, std::uint64_t address) const {
  const std::uint32_t first = first_moment(space);
  Access after = access(place, 0);
  if (!ordered(now.written, after, first)) report("a read", space, place, address, "written", now.written);
  const Access& last = now.read;
  auto others = static_cast<Others>(last.detail);
  if (last.moment < first) {
    others = Others::none;
  } else if (last.moment < block_ || others == Others::other_blocks) {
    others = Others::other_blocks;
  } else if (last.moment != now_) {
    others = Others::none;
  } else if (warp_of(last.thread) != warp_of(after.thread)) {
    others = Others::other_warps;
  } else if (others != Others::other_warps) {
    // A barrier of the warp orders all that its lanes have read before.
    if (last.warp_barriers != after.warp_barriers) {
      others = Others::none;
    } else if (last.thread != after.thread) {
      others = Others::same_warp;
    }
  }
  after.detail = static_cast<std::uint32_t>(others) & 3U;
  now.read = after;
}

void RaceDetector::write(Byte& now, Space space, const Place& place, std::uint64_t address, bool atomic) const {
  const std::uint32_t first = first_moment(space);
  const Access after = access(place, atomic ? 1 : 0);
  if (!(atomic && now.written.detail != 0) && !ordered(now.written, after, first)) {
    report("a write", space, place, address, "written", now.written);
  }
  const Access& last = now.read;
  if (last.moment >= first) {
    const auto others = static_cast<Others>(last.detail);
    bool raced = !ordered(last, after, first) || others == Others::other_blocks;
    if (last.moment == now_) {
      const bool same_warp = warp_of(last.thread) == warp_of(after.thread);
      raced |= others == Others::other_warps;
      raced |= others == Others::same_warp && !(same_warp && last.warp_barriers != after.warp_barriers);
    }
    if (raced) report("a write", space, place, address, "read", last);
  }
  now.written = after;
}

// Says whether two hold the same bits, without the call of std::memcmp that the address sanitizer makes of it.
template <class Byte>
bool same_bits(const Byte& a, const Byte& b) {
  static_assert(std::has_unique_object_representations_v<Byte>);
  struct Halves {
    std::uint64_t low, high;
  };
  const auto x = std::bit_cast<Halves>(a), y = std::bit_cast<Halves>(b);
  return x.low == y.low && x.high == y.high;
}

// Calls body(byte, address) for each, or does what it did to the byte before where that had been the same.
template <class Byte, class Body>
void for_each_byte(Byte* now, std::uint64_t address, unsigned bytes, const Body& body) {
  Byte before = now[0];
  body(now[0], address);
  for (unsigned i = 1; i < bytes; ++i) {
    if (same_bits(now[i], before)) {
      now[i] = now[i - 1];
    } else {
      before = now[i];
      body(now[i], address + i);
    }
  }
}

void RaceDetector::read(Space space, const Place& place, std::uint64_t address, unsigned bytes) {
  for_each_byte(bytes_at(space, address), address, bytes,
                [&](Byte& now, std::uint64_t at) { read(now, space, place, at); });
}

void RaceDetector::write(Space space, const Place& place, std::uint64_t address, unsigned bytes, bool atomic) {
  if (atomic && space != Space::shared) meet_others(place, address);
  for_each_byte(bytes_at(space, address), address, bytes,
                [&](Byte& now, std::uint64_t at) { write(now, space, place, at, atomic); });
}

}  // namespace hayloft::simt::ptx
