#include "tests/simt/ptx/schedule.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace hayloft::simt::ptx {
namespace {

Mask lanes_at(const Warp& warp, unsigned pc) {
  Mask lanes = 0;
  for_each_lane(warp.running, [&](unsigned lane) {
    if (warp.pc[lane] == pc) lanes |= Mask{1} << lane;
  });
  return lanes;
}

Warp& any_running(std::vector<Warp>& warps, std::mt19937_64& random) {
  std::size_t able = 0;
  for (const Warp& warp : warps) able += warp.running != 0;
  std::size_t pick = random() % able;
  for (Warp& warp : warps) {
    if (warp.running != 0 && pick-- == 0) return warp;
  }
  return warps.front();
}

// The lanes that are furthest behind run until they reach others.
class Lockstep : public Schedule {
 public:
  explicit Lockstep(std::mt19937_64& random) : random_(random) {}

  Turn next(std::vector<Warp>& warps) override {
    Turn turn{&any_running(warps, random_)};
    const Warp& warp = *turn.warp;
    turn.pc = ~0u;
    for_each_lane(warp.running, [&](unsigned lane) { turn.pc = std::min(turn.pc, warp.pc[lane]); });
    turn.lanes = lanes_at(warp, turn.pc);
    for_each_lane(warp.running & ~turn.lanes, [&](unsigned lane) { turn.until = std::min(turn.until, warp.pc[lane]); });
    return turn;
  }

 private:
  std::mt19937_64& random_;
};

class Adversarial : public Schedule {
 public:
  explicit Adversarial(std::mt19937_64& random) : random_(random) {}

  Turn next(std::vector<Warp>& warps) override {
    Turn turn{&any_running(warps, random_)};
    const Warp& warp = *turn.warp;
    unsigned lane = static_cast<unsigned>(random_() % kLanes);
    while ((warp.running >> lane & 1) == 0) lane = (lane + 1) % kLanes;
    turn.pc = warp.pc[lane];
    const Mask one = Mask{1} << lane;
    const std::uint64_t dice = random_();
    switch (dice % 8) {
      case 0:
        turn.lanes = one;
        break;
      case 1:
      case 2:
      case 3:
        turn.lanes = (lanes_at(warp, turn.pc) & static_cast<Mask>(dice >> 32)) | one;
        break;
      default:
        turn.lanes = lanes_at(warp, turn.pc);
    }
    turn.steps = std::uint64_t{1} << (dice >> 8) % 10;
    return turn;
  }

 private:
  std::mt19937_64& random_;
};

class Starving : public Schedule {
 public:
  explicit Starving(std::mt19937_64& random) : random_(random) { std::iota(lanes_.begin(), lanes_.end(), 0); }

  void begin_block(std::size_t warps) override {
    warps_.resize(warps);
    std::iota(warps_.begin(), warps_.end(), std::size_t{0});
    std::shuffle(warps_.begin(), warps_.end(), random_);
    std::shuffle(lanes_.begin(), lanes_.end(), random_);
    alone_ = random_() % 4 == 0;
  }

  Turn next(std::vector<Warp>& warps) override {
    const auto first =
        *std::find_if(warps_.begin(), warps_.end(), [&](std::size_t w) { return warps[w].running != 0; });
    Warp& warp = warps[first];
    const unsigned lane =
        *std::find_if(lanes_.begin(), lanes_.end(), [&](unsigned l) { return (warp.running >> l & 1) != 0; });
    const unsigned pc = warp.pc[lane];
    return {&warp, alone_ ? Mask{1} << lane : lanes_at(warp, pc), pc};
  }

 private:
  std::mt19937_64& random_;
  std::vector<std::size_t> warps_;
  std::array<unsigned, kLanes> lanes_{};
  bool alone_ = false;  // lanes run one by one
};

}  // namespace

std::optional<ScheduleKind> schedule_named(std::string_view name) {
  if (name == "lockstep") return ScheduleKind::lockstep;
  if (name == "adversarial") return ScheduleKind::adversarial;
  if (name == "starving") return ScheduleKind::starving;
  return std::nullopt;
}

std::unique_ptr<Schedule> make_schedule(ScheduleKind kind, std::mt19937_64& random) {
  switch (kind) {
    case ScheduleKind::adversarial:
      return std::make_unique<Adversarial>(random);
    case ScheduleKind::starving:
      return std::make_unique<Starving>(random);
    default:
      return std::make_unique<Lockstep>(random);
  }
}

}  // namespace hayloft::simt::ptx
