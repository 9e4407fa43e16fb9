#include "tests/simt/device/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <type_traits>
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
    static_assert(std::has_unique_object_representations_v<std::source_location>);
    if (what == other.what && std::memcmp(&where, &other.where, sizeof where) == 0) return true;  // the same call
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
  // Lanes bring their values to two tables in turn: a lane may be at the next meeting while others still read what was
  // brought to this one, but never two ahead.
  std::array<std::array<Brought, kLanes>, 2> tables;
  unsigned turn = 0;
};

enum class State : std::uint8_t { ready, waiting, returned };

struct Thread {
  Fiber fiber;
  uint3 index;
  bool started;
  const Site* site;  // while waiting
};

bool has_no_numbers(const SharedVariable& variable) {
  static std::vector<std::byte> none;  // the sanitizer looks one comparison of many bytes up once
  if (none.size() < variable.bytes) none.resize(variable.bytes, std::byte{0xff});
  return std::memcmp(variable.data, none.data(), variable.bytes) == 0;
}

void fill_with_nan(const SharedVariable& variable) {
  std::memset(variable.data, 0xff, variable.bytes);
}

std::string text(uint3 v) {
  return fmt::format("({}, {}, {})", v.x, v.y, v.z);
}

class Machine {
 public:
  Machine();
  std::string run(const Grid& grid, const void* function, const std::function<void()>& kernel, std::mt19937_64& random);

  void block_barrier(const Site& site);
  Lanes exchange(Brought brought, const Site& site);
  unsigned char* shared() const { return shared_.get(); }
  bool is_shared(const std::byte* address) const;

 private:
  void run_block();
  Fiber* next();
  Fiber* make_current(unsigned thread);
  void meet(Meeting& meeting, unsigned expected, unsigned first, const Site& site);
  [[noreturn]] void fail_here(std::string message);
  std::string stuck() const;
  static std::string others_touched();

  struct Freed {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };

  std::vector<std::unique_ptr<Thread>> threads_;  // as many as the largest block yet
  std::vector<State> states_;                     // of each thread
  std::vector<Warp> warps_;
  std::vector<unsigned> ready_;  // the first ready_count_
  unsigned ready_count_ = 0;
  Meeting block_;
  unsigned count_ = 0;  // threads of a block
  unsigned current_ = 0;
  Fiber::Job body_;
  std::unique_ptr<unsigned char, Freed> shared_;  // dynamic
  std::size_t shared_bytes_ = 0;
  const std::byte* fixed_begin_ = nullptr;  // the static ones of all kernels lie between
  const std::byte* fixed_end_ = nullptr;
  std::string failure_;
  std::uint64_t random_ = 1;
};

Machine::Machine() {
  for (const SharedVariable& variable : shared_variables()) {
    fill_with_nan(variable);
    if (!fixed_begin_ || variable.data < fixed_begin_) fixed_begin_ = variable.data;
    if (variable.data + variable.bytes > fixed_end_) fixed_end_ = variable.data + variable.bytes;
  }
}

std::string Machine::run(const Grid& grid, const void* function, const std::function<void()>& kernel,
                         std::mt19937_64& random) {
  random_ = random() | 1U;
  failure_.clear();
  gridDim = grid.blocks;
  blockDim = grid.threads;
  count_ = grid.threads.x * grid.threads.y * grid.threads.z;
  while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>());
  warps_.resize((count_ + kLanes - 1) / kLanes);
  states_.resize(threads_.size());
  ready_.resize(threads_.size());
  const std::vector<SharedVariable>& own = shared_variables(function);
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
    std::for_each(own.begin(), own.end(), fill_with_nan);
    run_block();
    if (!failure_.empty()) break;
  }
  shared_.reset();
  std::for_each(own.begin(), own.end(), fill_with_nan);
  if (failure_.empty()) failure_ = others_touched();
  return failure_;
}

// Looks for numbers in variables that the kernel does not declare: its blocks begin with its own ones filled, by
// shared_variables(function), and those would keep what an earlier block left. Returns the failure; empty: none.
std::string Machine::others_touched() {
  for (const SharedVariable& variable : shared_variables()) {
    if (has_no_numbers(variable)) continue;
    fill_with_nan(variable);
    return fmt::format("{} is used by a kernel that does not declare it; make its function inline", variable.name);
  }
  return {};
}

void Machine::run_block() {
  ready_count_ = 0;
  block_ = {};
  for (unsigned w = 0; w < warps_.size(); ++w) {
    Warp& warp = warps_[w];
    warp.meeting = {};
    warp.lanes = std::min(kLanes, count_ - w * kLanes);
    for (auto& table : warp.tables) table.fill({{~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}}});
  }
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = *threads_[i];
    thread.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / (blockDim.x * blockDim.y)};
    states_[i] = State::ready;
    thread.started = false;
    thread.fiber.start(body_);
    ready_[ready_count_++] = i;
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
  if (ready_count_ == 0 || !failure_.empty()) return nullptr;
  random_ = random_ * 6364136223846793005U + 1442695040888963407U;
  const std::size_t pick = (random_ >> 32U) * ready_count_ >> 32U;
  return make_current(std::exchange(ready_[pick], ready_[--ready_count_]));
}

Fiber* Machine::make_current(unsigned thread) {
  current_ = thread;
  Thread& next = *threads_[thread];
  threadIdx = next.index;
  next.started = true;
  return &next.fiber;
}

void Machine::fail_here(std::string message) {
  failure_ = fmt::format("{}, in block {}", message, text(blockIdx));
  throw Unwound{};
}

// `expected` threads from `first` on meet.
void Machine::meet(Meeting& meeting, unsigned expected, unsigned first, const Site& site) {
  Thread& thread = *threads_[current_];
  if (meeting.waiting == 0) {
    meeting.site = site;
  } else if (!(meeting.site == site)) {
    fail_here(fmt::format("divergent barrier: thread {} is at {} while others wait at {}", text(thread.index),
                          site.text(), meeting.site.text()));
  }
  if (++meeting.waiting == expected) {
    meeting.waiting = 0;
    for (unsigned i = first; i < first + expected; ++i) {
      states_[i] = State::ready;
      ready_[ready_count_++] = i;
    }
  } else {
    states_[current_] = State::waiting;
    thread.site = &site;
  }
  thread.fiber.go_on_with(next());
  if (!failure_.empty()) throw Unwound{};
}

void Machine::block_barrier(const Site& site) {
  meet(block_, count_, 0, site);
}

Lanes Machine::exchange(Brought brought, const Site& site) {
  const unsigned w = current_ / kLanes;
  const unsigned lane = current_ % kLanes;
  Warp& warp = warps_[w];
  auto& table = warp.tables[warp.turn % 2];
  table[lane] = brought;
  if (warp.meeting.waiting + 1 == warp.lanes) ++warp.turn;
  meet(warp.meeting, warp.lanes, w * kLanes, site);
  return {table.data(), static_cast<unsigned>((std::uint64_t{1} << warp.lanes) - 1), static_cast<int>(lane)};
}

bool Machine::is_shared(const std::byte* address) const {
  const auto within = [&](const void* data, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(data);
    return address >= begin && address < begin + bytes;
  };
  if (within(shared_.get(), shared_bytes_)) return true;
  if (address < fixed_begin_ || address >= fixed_end_) return false;
  const std::vector<SharedVariable>& fixed = shared_variables();
  return std::any_of(fixed.begin(), fixed.end(),
                     [&](const auto& variable) { return within(variable.data, variable.bytes); });
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
      waiting, count_, returned, text(blockIdx), text(first->index), first->site->text());
}

// Never destroyed: fibers live until the process ends.
Machine& machine() {
  static Machine& machine = *new Machine;
  return machine;
}

}  // namespace

std::string run_grid(const Grid& grid, const void* function, const std::function<void()>& kernel,
                     std::mt19937_64& random) {
  return machine().run(grid, function, kernel, random);
}

void block_barrier(std::source_location where) {
  machine().block_barrier({"__syncthreads", where});
}

Lanes exchange(Brought brought, const char* what, std::source_location where) {
  return machine().exchange(brought, {what, where});
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
