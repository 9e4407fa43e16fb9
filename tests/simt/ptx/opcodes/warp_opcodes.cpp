#include <fmt/format.h>

#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "shfl.sync", "vote.sync" and "bar.warp.sync". They run for all lanes that take part at once; the scheduler
// has seen to it that these have come.
namespace hayloft::simt::ptx {
namespace {

enum class Direction { up, down, butterfly, index };

// The lane that `lane` reads from, or itself where that lies outside of its segment.
struct Origin {
  int lane;
  bool inside;
};

Origin origin(Direction direction, int lane, std::uint32_t operand, std::uint32_t clamp_and_segment) {
  const int by = static_cast<int>(operand & 0x1f);
  const int segment = static_cast<int>(clamp_and_segment >> 8 & 0x1f);
  const int clamp = static_cast<int>(clamp_and_segment & 0x1f);
  const int last = (lane & segment) | (clamp & ~segment);
  const int first = lane & segment;
  switch (direction) {
    case Direction::up:
      return {lane - by, lane - by >= last};
    case Direction::down:
      return {lane + by, lane + by <= last};
    case Direction::butterfly:
      return {lane ^ by, (lane ^ by) <= last};
    default:
      return {first | (by & ~segment), (first | (by & ~segment)) <= last};
  }
}

template <Direction direction>
void shuffle(Warp& warp, const Instruction& in, Mask lanes) {
  std::array<std::uint32_t, kLanes> result{};
  Mask inside = 0;
  for_each_lane(lanes, [&](unsigned lane) {
    Origin from = origin(direction, static_cast<int>(lane), warp.lanes<std::uint32_t>(in.from[1])[lane],
                         warp.lanes<std::uint32_t>(in.from[2])[lane]);
    if (from.inside) {
      inside |= Mask{1} << lane;
    } else {
      from.lane = static_cast<int>(lane);
    }
    if ((lanes >> from.lane & 1) == 0) {
      throw Fault(lane, fmt::format("a shuffle from lane {}, which takes no part", from.lane));
    }
    result[lane] = warp.lanes<std::uint32_t>(in.from[0])[from.lane];
  });
  for_each_lane(lanes, [&](unsigned lane) { warp.lanes<std::uint32_t>(in.to[0])[lane] = result[lane]; });
  if (in.to.count > 1) {
    Mask& to = warp.predicate(in.to[1].offset);
    to = (to & ~lanes) | inside;
  }
}

void ballot(Warp& warp, const Instruction& in, Mask lanes) {
  const Mask votes = warp.predicate(in.from[0].offset) & lanes;
  for_each_lane(lanes, [&](unsigned lane) { warp.lanes<std::uint32_t>(in.to[0])[lane] = votes; });
}

// One that leaves lanes out orders nothing for the race detector.
void warp_barrier(Warp& warp, const Instruction&, Mask lanes) {
  if (lanes == (warp.existing & ~warp.exited)) ++warp.barriers;
}

}  // namespace

void add_warp_opcodes(std::vector<Opcode>& to) {
  const auto add_shuffle = [&](const char* name, auto run) {
    to.push_back({.name = name,
                  .form = Form::meeting,
                  .to = {Type::b32, Type::pred},
                  .from = {Type::b32, Type::b32, Type::b32, Type::b32},
                  .second_optional = true,
                  .run = run});
  };
  add_shuffle("shfl.sync.up.b32", shuffle<Direction::up>);
  add_shuffle("shfl.sync.down.b32", shuffle<Direction::down>);
  add_shuffle("shfl.sync.bfly.b32", shuffle<Direction::butterfly>);
  add_shuffle("shfl.sync.idx.b32", shuffle<Direction::index>);
  to.push_back({.name = "vote.sync.ballot.b32",
                .form = Form::meeting,
                .to = {Type::b32},
                .from = {Type::pred, Type::b32},
                .run = ballot});
  to.push_back({.name = "bar.warp.sync", .form = Form::meeting, .from = {Type::b32}, .run = warp_barrier});
}

}  // namespace hayloft::simt::ptx
