#include "tests/simt/ptx/grid_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>

namespace hayloft::simt::ptx {
namespace {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string text(uint3 v) {
  return fmt::format("({}, {}, {})", v.x, v.y, v.z);
}

std::size_t dynamic_offset(const Kernel& kernel) {  // behind the static variables
  constexpr std::size_t alignment = 16;
  return (kernel.static_shared_bytes + alignment - 1) / alignment * alignment;
}

// Keeps the registers of launches before: to ask the system for them at each launch would take a tenth of the time.
std::vector<Warp::Registers>& spare_registers() {
  static std::vector<Warp::Registers> spare;
  return spare;
}

class GridRun {
 public:
  GridRun(const Module& module, const Kernel& kernel, const Grid& grid, AddressSpaces& memory, Schedule& schedule,
          std::mt19937_64& random);
  ~GridRun();
  GridRun(const GridRun&) = delete;
  GridRun& operator=(const GridRun&) = delete;

  void run();  // throws Failure
  std::uint64_t instructions() const { return instructions_; }
  const std::vector<std::uint64_t>& issues() const { return issues_; }

 private:
  void run_block();
  void begin_threads();
  std::uint32_t special(Special what, unsigned thread) const;
  void take(const Turn& turn);
  void meet(Warp& warp);
  bool release_barrier();

  uint3 index(unsigned thread) const;
  [[noreturn]] void fail(const std::string& what, const Warp& warp, unsigned lane) const;
  [[noreturn]] void fail(const std::string& what, const Warp& warp, unsigned lane, const Instruction& at) const;

  const Module& module_;
  const Kernel& kernel_;
  const Grid& grid_;
  AddressSpaces& memory_;
  Schedule& schedule_;
  std::mt19937_64& random_;
  unsigned threads_;
  std::vector<Warp> warps_;
  uint3 block_{};
  const Instruction* current_ = nullptr;
  std::uint64_t instructions_ = 0;
  std::vector<std::uint64_t> issues_;
};

GridRun::GridRun(const Module& module, const Kernel& kernel, const Grid& grid, AddressSpaces& memory,
                 Schedule& schedule, std::mt19937_64& random)
    : module_(module),
      kernel_(kernel),
      grid_(grid),
      memory_(memory),
      schedule_(schedule),
      random_(random),
      threads_(grid.threads.x * grid.threads.y * grid.threads.z),
      issues_(kernel.code.size()) {
  std::vector<Warp::Registers>& spare = spare_registers();
  const unsigned warps = (threads_ + kLanes - 1) / kLanes;
  if (spare.size() < warps) spare.resize(warps);
  warps_.reserve(warps);
  for (unsigned first = 0; first < threads_; first += kLanes) {
    warps_.emplace_back(kernel, memory, first / kLanes, std::min(kLanes, threads_ - first), std::move(spare.back()));
    spare.pop_back();
  }
}

GridRun::~GridRun() {
  for (Warp& warp : warps_) spare_registers().push_back(warp.take_registers());
}

uint3 GridRun::index(unsigned thread) const {
  return {thread % grid_.threads.x, thread / grid_.threads.x % grid_.threads.y,
          thread / (grid_.threads.x * grid_.threads.y)};
}

void GridRun::fail(const std::string& what, const Warp& warp, unsigned lane, const Instruction& at) const {
  throw Failure(fmt::format("{}: {} at {}, thread {} of block {}", what, module_.line(at.line), module_.place(at),
                            text(index(warp.number * kLanes + lane)), text(block_)));
}
void GridRun::fail(const std::string& what, const Warp& warp, unsigned lane) const {
  fail(what, warp, lane, kernel_.code[warp.pc[lane]]);
}

void GridRun::run() {
  if (threads_ > kernel_.most_threads) {
    throw Failure(fmt::format("{} threads in a block, {} at most", threads_, kernel_.most_threads));
  }
  std::vector<uint3> blocks;
  for (unsigned z = 0; z < grid_.blocks.z; ++z) {
    for (unsigned y = 0; y < grid_.blocks.y; ++y) {
      for (unsigned x = 0; x < grid_.blocks.x; ++x) blocks.push_back({x, y, z});
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), random_);
  for (const uint3 block : blocks) {
    block_ = block;
    run_block();
  }
}

std::uint32_t GridRun::special(Special what, unsigned thread) const {
  switch (what) {
    case Special::tid_x:
      return index(thread).x;
    case Special::tid_y:
      return index(thread).y;
    case Special::tid_z:
      return index(thread).z;
    case Special::ctaid_x:
      return block_.x;
    case Special::ctaid_y:
      return block_.y;
    case Special::ctaid_z:
      return block_.z;
    case Special::ntid_x:
      return grid_.threads.x;
    case Special::ntid_y:
      return grid_.threads.y;
    case Special::ntid_z:
      return grid_.threads.z;
    case Special::nctaid_x:
      return grid_.blocks.x;
    case Special::nctaid_y:
      return grid_.blocks.y;
    case Special::nctaid_z:
      return grid_.blocks.z;
    case Special::laneid:
      return thread % kLanes;
    default:
      return static_cast<std::uint32_t>(dynamic_offset(kernel_));
  }
}

void GridRun::begin_threads() {
  for (Warp& warp : warps_) {
    warp.fill_registers(std::byte{0xd5});  // what nobody has written yet: neither zero nor a valid address
    for (const Constant& constant : kernel_.constants) {
      for (unsigned lane = 0; lane < kLanes; ++lane) warp.set_bits(constant.where, lane, constant.bits);
    }
    for (const SpecialRegister& use : kernel_.specials) {
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        warp.set_bits(use.where, lane, special(use.what, warp.number * kLanes + lane));
      }
    }
    warp.running = warp.existing;
    warp.at_meeting = warp.at_barrier = warp.exited = 0;
    warp.pc.fill(0);
    warp.barriers = 0;
    for (auto& copies : warp.copies) copies.clear();
  }
}

void GridRun::run_block() {
  memory_.begin_block();
  begin_threads();
  schedule_.begin_block(warps_.size());
  do {
    while (std::any_of(warps_.begin(), warps_.end(), [](const Warp& warp) { return warp.running != 0; })) {
      take(schedule_.next(warps_));
    }
  } while (release_barrier());
}

// Called when nobody runs: true if all threads waited for each other and go on, false if all have exited.
bool GridRun::release_barrier() {
  const Warp* waiting = nullptr;
  for (const Warp& warp : warps_) {
    if (warp.at_meeting != 0) {
      fail("lanes of a warp wait for ever", warp, static_cast<unsigned>(std::countr_zero(warp.at_meeting)));
    }
    if (warp.at_barrier != 0 && !waiting) waiting = &warp;
  }
  if (!waiting) return false;
  const auto first = static_cast<unsigned>(std::countr_zero(waiting->at_barrier));
  const unsigned pc = waiting->pc[first];
  for (const Warp& warp : warps_) {
    if (warp.exited != 0) fail("divergent barrier: some threads wait, others have exited", *waiting, first);
    for_each_lane(warp.at_barrier, [&](unsigned lane) {
      if (warp.pc[lane] == pc) return;
      fail(fmt::format("divergent barrier: others wait at {}", module_.place(kernel_.code[pc])), warp, lane);
    });
  }
  for (Warp& warp : warps_) {
    warp.running = std::exchange(warp.at_barrier, 0);
    warp.pc.fill(pc + 1);
  }
  memory_.pass_barrier();
  return true;
}

// Lanes that wait for each other go on where all of them have come.
void GridRun::meet(Warp& warp) {
  while (warp.at_meeting != 0) {
    const auto first = static_cast<unsigned>(std::countr_zero(warp.at_meeting));
    const unsigned pc = warp.pc[first];
    const Instruction& in = kernel_.code[pc];
    const Register mask = in.from[in.from.count - 1];
    const auto members = static_cast<Mask>(warp.bits(mask, first));
    for_each_lane(warp.at_meeting, [&](unsigned lane) {
      if (warp.pc[lane] != pc) {
        fail(fmt::format("lanes of a warp wait at two places, others at {}", module_.place(in)), warp, lane);
      }
      if (static_cast<Mask>(warp.bits(mask, lane)) != members || (members >> lane & 1) == 0) {
        fail(fmt::format("the mask of lanes is not that of lane {}", first), warp, lane);
      }
    });
    const Mask expected = members & warp.existing & ~warp.exited;
    const Mask missing = expected & ~warp.at_meeting;
    if ((missing & warp.at_barrier) != 0) {
      fail(fmt::format("divergent barrier: other lanes of the warp wait at {}", module_.place(in)), warp,
           static_cast<unsigned>(std::countr_zero(missing & warp.at_barrier)));
    }
    if (missing != 0) return;
    current_ = &in;
    in.opcode->run(warp, in, expected);
    memory_.end_access();
    warp.at_meeting &= ~expected;
    warp.running |= expected;
    for_each_lane(expected, [&](unsigned lane) { warp.pc[lane] = pc + 1; });
  }
}

void GridRun::take(const Turn& turn) {
  Warp& warp = *turn.warp;
  const Mask lanes = turn.lanes;
  unsigned pc = turn.pc;
  const auto leave = [&](Mask some, unsigned at) { for_each_lane(some, [&](unsigned lane) { warp.pc[lane] = at; }); };
  try {
    for (std::uint64_t left = turn.steps; left > 0 && pc < turn.until; --left) {
      const Instruction& in = kernel_.code[pc];
      current_ = &in;
      ++issues_[pc];
      instructions_ += static_cast<std::uint64_t>(std::popcount(lanes));
      Mask on = lanes;
      if (in.guarded) on &= in.negated ? ~warp.predicate(in.guard) : warp.predicate(in.guard);
      switch (in.opcode->form) {
        case Form::branch:
          if (on != 0 && on != lanes) {
            leave(on, in.target);
            leave(lanes & ~on, pc + 1);
            return;
          }
          pc = on != 0 ? in.target : pc + 1;
          break;
        case Form::exit:
          warp.exited |= on;
          warp.running &= ~on;
          leave(lanes & ~on, pc + 1);
          return meet(warp);  // who waited for these goes on
        case Form::block_barrier:
        case Form::meeting:
        case Form::meeting_load: {
          leave(lanes, pc);
          const auto first = static_cast<unsigned>(std::countr_zero(lanes));
          if (on != lanes) fail("a barrier for some lanes only", warp, first);
          warp.running &= ~lanes;
          if (in.opcode->form != Form::block_barrier) {
            const Mask others = warp.running;
            warp.at_meeting |= lanes;
            meet(warp);
            if (warp.running != (others | lanes)) return;
            ++pc;
            break;
          }
          if (warp.bits(in.from[0], first) != 0) fail("a barrier other than 0", warp, first);
          warp.at_barrier |= lanes;
          return meet(warp);
        }
        default:
          in.opcode->run(warp, in, on);
          if (in.opcode->form != Form::lanes) memory_.end_access();
          ++pc;
      }
    }
  } catch (const Fault& fault) {
    fail(fault.what(), warp, fault.lane, *current_);
  }
  leave(lanes, pc);
}

}  // namespace

RunResult run_kernel(const Module& module, const Kernel& kernel, const Grid& grid, std::span<std::byte> parameters,
                     const AddressSpaces::FindPiece& find_piece, const RunOptions& options, std::mt19937_64& random) {
  TrafficCounter traffic;
  AddressSpaces memory(parameters, dynamic_offset(kernel) + grid.shared_bytes, find_piece, options.races,
                       options.traffic ? &traffic : nullptr);
  const std::unique_ptr<Schedule> schedule = make_schedule(options.schedule, random);
  GridRun run(module, kernel, grid, memory, *schedule, random);
  RunResult result;
  try {
    run.run();
  } catch (const Failure& failure) {
    result.failure = failure.what();
  }
  result.instructions = run.instructions();
  result.issues = run.issues();
  result.traffic = traffic.total();
  return result;
}

}  // namespace hayloft::simt::ptx
