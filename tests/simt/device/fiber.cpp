#include "tests/simt/device/fiber.h"

#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>

#include <new>

namespace hayloft::simt {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t stack_bytes = std::size_t{128} << 10;  // holds the frames of an instrumented kernel
constexpr std::size_t stacks_of_a_hall = 256;  // 33 MiB: what an exception leaves the sanitizer cleans up to 64

}  // namespace

// Stacks, each above a page that may not be touched. Kept until the process ends, as fibers are.
struct Fiber::Hall {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::size_t taken = 0;
  void* fake_stack = nullptr;  // the sanitizer's, while nobody runs here

  std::byte* take_stack() {  // its lowest byte
    std::byte* const guard = base + taken++ * (page + stack_bytes);
    if (mprotect(guard, page, PROT_NONE) != 0) throw std::bad_alloc();
    return guard + page;
  }
};

Fiber::Hall* Fiber::hall_with_room() {
  static Hall* newest = nullptr;
  if (newest && newest->taken < stacks_of_a_hall) return newest;
  constexpr std::size_t bytes = stacks_of_a_hall * (page + stack_bytes);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  newest = new Hall{static_cast<std::byte*>(memory), bytes};
  return newest;
}

namespace {

// Holds what the sanitizer is told of the stack that enters.
struct Outside {
  bool enters = false;
  const void* stack = nullptr;
  std::size_t bytes = 0;
  void* fake_stack = nullptr;
};
Outside outside;

}  // namespace

Fiber::Fiber() : hall_(hall_with_room()) {
  // Stacks that begin at one place of their pages would share a few lines of the first cache.
  const std::size_t apart = hall_->taken * 448 % page;
  std::byte* const stack = hall_->take_stack();
  context_ = boost::context::detail::make_fcontext(stack + stack_bytes - apart, stack_bytes - apart, run);
  context_ = boost::context::detail::jump_fcontext(context_, this).fctx;
}

void Fiber::run(Arrival maker) {
  auto* const fiber = static_cast<Fiber*>(maker.data);
  fiber->arrived(boost::context::detail::jump_fcontext(maker.fctx, nullptr));
  for (;;) fiber->go_on_with((*fiber->job_)());
}

void Fiber::enter() {
  outside.enters = told_ = true;
  __sanitizer_start_switch_fiber(&outside.fake_stack, hall_->base, hall_->bytes);
  const Arrival from = boost::context::detail::jump_fcontext(context_, &outside_);
  *static_cast<Context*>(from.data) = from.fctx;
  told_ = false;
  __sanitizer_finish_switch_fiber(outside.fake_stack, nullptr, nullptr);
}

void Fiber::tell_of_switch(Fiber* next) {
  told_ = true;
  if (next) {
    __sanitizer_start_switch_fiber(&hall_->fake_stack, next->hall_->base, next->hall_->bytes);
  } else {
    __sanitizer_start_switch_fiber(&hall_->fake_stack, outside.stack, outside.bytes);
  }
}

void Fiber::end_told_switch(Hall* into) {
  told_ = false;
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(into->fake_stack, &stack, &bytes);
  if (outside.enters) outside = {false, stack, bytes, outside.fake_stack};
}

}  // namespace hayloft::simt
