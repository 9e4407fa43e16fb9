#include "tests/simt/device/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/simt/device/fiber.h"
#include "tests/simt/device/symbols.h"

namespace hayloft::simt {
namespace {

constexpr unsigned kLanes = 32;

struct Unwound {};  // thrown in the threads of a launch that has failed

struct Site {
  const char* what = nullptr;
  std::source_location where;

  bool operator==(const Site& other) const {
    return where.line() == other.where.line() && where.column() == other.where.column() &&
           same(where.file_name(), other.where.file_name()) && same(what, other.what);
  }
  static bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
  std::string text() const { return fmt::format("{} at {}:{}", what, where.file_name(), where.line()); }
};

// The meeting at which threads wait for each other.
struct Meeting {
  Site site;
  unsigned waiting = 0;
};

struct Warp {
  Meeting meeting;
  unsigned lanes = 0;
  // The values that the lanes bring. A lane may be at the next meeting while others still read what was brought to this
  // one, but never two ahead: two tables in turn.
  std::array<std::array<std::byte, kLanes * Lanes::slot_bytes>, 2> tables;
  std::array<unsigned, kLanes> meetings;  // so far, per lane
};

enum class State : std::uint8_t { ready, waiting, returned };

struct Thread {
  Fiber fiber;
  uint3 index;
  bool started;
  Site site;  // while waiting
};

// Copies what a lane brings: by moves, as std::memcpy() of a number of bytes goes by way of the sanitizer.
void copy(std::byte* to, const void* from, std::size_t bytes) {
  switch (bytes) {
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    case 16:
      std::memcpy(to, from, 16);
      return;
    default:
      if (bytes > 0) std::memcpy(to, from, bytes);
  }
}

std::string text(uint3 v) {
  return fmt::format("({}, {}, {})", v.x, v.y, v.z);
}

class Machine {
 public:
  std::string run(const Grid& grid, const std::function<void()>& kernel, std::mt19937_64& random);

  void block_barrier(const Site& site);
  Lanes exchange(const void* value, std::size_t bytes, const Site& site);
  unsigned char* shared() const { return shared_.get(); }
  bool is_shared(const std::byte* address) const;

 private:
  void run_block();
  Fiber* next();
  Fiber* make_current(unsigned thread);
  void meet(Meeting& meeting, unsigned expected, unsigned first, const Site& site);
  [[noreturn]] void fail_here(std::string message);
  std::string stuck() const;

  struct Freed {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };

  std::vector<std::unique_ptr<Thread>> threads_;  // as many as the largest block yet
  std::vector<State> states_;                     // of each thread
  std::vector<Warp> warps_;
  std::vector<unsigned> ready_;
  Meeting block_;
  unsigned count_ = 0;  // threads of a block
  unsigned current_ = 0;
  Fiber::Job body_;
  std::unique_ptr<unsigned char, Freed> shared_;  // dynamic
  std::size_t shared_bytes_ = 0;
  std::string failure_;
  std::uint64_t random_ = 1;
};

std::string Machine::run(const Grid& grid, const std::function<void()>& kernel, std::mt19937_64& random) {
  random_ = random() | 1U;
  failure_.clear();
  gridDim = grid.blocks;
  blockDim = grid.threads;
  count_ = grid.threads.x * grid.threads.y * grid.threads.z;
  while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>());
  warps_.resize((count_ + kLanes - 1) / kLanes);
  states_.resize(threads_.size());
  body_ = [&] {
    try {
      kernel();
    } catch (const Unwound&) {
    } catch (const std::exception& error) {
      failure_ = fmt::format("exception in thread {} of block {}: {}", text(threadIdx), text(blockIdx), error.what());
    }
    states_[current_] = State::returned;
    return next();
  };
  void* memory = nullptr;
  if (posix_memalign(&memory, 16, grid.shared_bytes) != 0) throw std::bad_alloc();
  shared_.reset(static_cast<unsigned char*>(memory));
  shared_bytes_ = grid.shared_bytes;

  std::vector<uint3> blocks;
  for (unsigned z = 0; z < grid.blocks.z; ++z) {
    for (unsigned y = 0; y < grid.blocks.y; ++y) {
      for (unsigned x = 0; x < grid.blocks.x; ++x) blocks.push_back({x, y, z});
    }
  }
  std::shuffle(blocks.begin(), blocks.end(), random);
  for (const uint3 block : blocks) {
    blockIdx = block;
    std::memset(shared_.get(), 0xff, grid.shared_bytes);  // NaN
    for (const SharedVariable& variable : shared_variables()) std::memset(variable.data, 0xff, variable.bytes);
    run_block();
    if (!failure_.empty()) break;
  }
  shared_.reset();
  return failure_;
}

void Machine::run_block() {
  ready_.clear();
  block_ = {};
  for (unsigned w = 0; w < warps_.size(); ++w) {
    Warp& warp = warps_[w];
    warp.meeting = {};
    warp.lanes = std::min(kLanes, count_ - w * kLanes);
    warp.meetings.fill(0);
    for (auto& table : warp.tables) table.fill(std::byte{0xff});
  }
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    states_[i] = State::ready;
    thread.started = false;
    thread.fiber.start(body_);
    ready_.push_back(i);
  }
  next()->enter();
  if (failure_.empty()) failure_ = stuck();
  if (failure_.empty()) return;
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i]->started && states_[i] != State::returned) make_current(i)->enter();
  }
}

// Draws the thread to go on with, by a linear congruence; nullptr when none can, or after a failure.
Fiber* Machine::next() {
  if (ready_.empty() || !failure_.empty()) return nullptr;
  random_ = random_ * 6364136223846793005U + 1442695040888963407U;
  const std::size_t pick = (random_ >> 32U) * ready_.size() >> 32U;
  const unsigned thread = std::exchange(ready_[pick], ready_.back());
  ready_.pop_back();
  return make_current(thread);
}

Fiber* Machine::make_current(unsigned thread) {
  current_ = thread;
  threadIdx = threads_[thread]->index;
  threads_[thread]->started = true;
  return &threads_[thread]->fiber;
}

void Machine::fail_here(std::string message) {
  failure_ = fmt::format("{}, in block {}", message, text(blockIdx));
  throw Unwound{};
}

// `expected` threads from `first` on meet.
void Machine::meet(Meeting& meeting, unsigned expected, unsigned first, const Site& site) {
  Thread& thread = *threads_[current_];
  if (meeting.waiting == 0) meeting.site = site;
  if (!(meeting.site == site)) {
    fail_here(fmt::format("divergent barrier: thread {} is at {} while others wait at {}", text(thread.index),
                          site.text(), meeting.site.text()));
  }
  if (++meeting.waiting == expected) {
    meeting.waiting = 0;
    for (unsigned i = first; i < first + expected; ++i) {
      states_[i] = State::ready;
      ready_.push_back(i);
    }
  } else {
    states_[current_] = State::waiting;
    thread.site = site;
  }
  thread.fiber.go_on_with(next());
  if (!failure_.empty()) throw Unwound{};
}

void Machine::block_barrier(const Site& site) {
  meet(block_, count_, 0, site);
}

Lanes Machine::exchange(const void* value, std::size_t bytes, const Site& site) {
  const unsigned w = current_ / kLanes;
  const unsigned lane = current_ % kLanes;
  Warp& warp = warps_[w];
  auto& table = warp.tables[warp.meetings[lane]++ % 2];
  copy(table.data() + lane * Lanes::slot_bytes, value, bytes);
  meet(warp.meeting, warp.lanes, w * kLanes, site);
  return {table.data(), static_cast<unsigned>((std::uint64_t{1} << warp.lanes) - 1), static_cast<int>(lane)};
}

bool Machine::is_shared(const std::byte* address) const {
  const auto within = [&](const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    return address >= begin && address < begin + bytes;
  };
  const std::vector<SharedVariable>& fixed = shared_variables();
  return within(shared_.get(), shared_bytes_) || std::any_of(fixed.begin(), fixed.end(), [&](const auto& variable) {
           return within(variable.data, variable.bytes);
         });
}

std::string Machine::stuck() const {
  unsigned waiting = 0;
  unsigned returned = 0;
  const Thread* first = nullptr;
  for (unsigned i = 0; i < count_; ++i) {
    returned += states_[i] == State::returned;
    if (states_[i] != State::waiting) continue;
    ++waiting;
    if (!first) first = threads_[i].get();
  }
  if (!first) return {};
  return fmt::format(
      "divergent barrier: {} of {} threads wait for ever and {} have returned, in block {}; thread {} waits at {}",
      waiting, count_, returned, text(blockIdx), text(first->index), first->site.text());
}

// Never destroyed: fibers live until the process ends.
Machine& machine() {
  static Machine& machine = *new Machine;
  return machine;
}

}  // namespace

std::string run_grid(const Grid& grid, const std::function<void()>& kernel, std::mt19937_64& random) {
  return machine().run(grid, kernel, random);
}

void block_barrier(std::source_location where) {
  machine().block_barrier({"__syncthreads", where});
}

Lanes exchange(const void* value, std::size_t bytes, const char* what, std::source_location where) {
  return machine().exchange(value, bytes, {what, where});
}

unsigned char* dynamic_shared() {
  return machine().shared();
}

void require_global(const void* address, const char* what) {
  if (machine().is_shared(static_cast<const std::byte*>(address))) {
    throw std::logic_error(fmt::format("{} of shared memory", what));
  }
}

}  // namespace hayloft::simt
