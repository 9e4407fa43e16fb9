#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <vector>

#include "tests/simt/ptx/warp.h"

// Decides who runs next. CUDA promises little: that lanes of a warp may part and come together again, that a thread
// waits only where the program says so. A kernel has to give the same result in every one of these orders.
namespace hayloft::simt::ptx {

enum class ScheduleKind : std::uint8_t {
  lockstep,     // warps in a random order; lanes that part come together again where their paths meet
  adversarial,  // random lanes of random warps for a random while
  starving,  // warps in a random order of precedence: one runs only while all before it wait; in some blocks lanes too
};

std::optional<ScheduleKind> schedule_named(std::string_view name);

// Some lanes of a warp that run from one pc on.
struct Turn {
  Warp* warp = nullptr;
  Mask lanes = 0;
  unsigned pc = 0;
  unsigned until = ~0u;  // the turn ends before this instruction, where others stand
  std::uint64_t steps = ~std::uint64_t{0};
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual void begin_block(std::size_t warps) { (void)warps; }
  virtual Turn next(std::vector<Warp>& warps) = 0;  // some lane is running
};

std::unique_ptr<Schedule> make_schedule(ScheduleKind kind, std::mt19937_64& random);

}  // namespace hayloft::simt::ptx
