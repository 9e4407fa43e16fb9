#include "tests/simt/device/fiber.h"

#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>

#include <new>
#include <utility>

namespace hayloft::simt {
namespace {

constexpr std::size_t page = 4096;

// Fibers are kept until the process ends, and their stacks with them.
struct GivenStack {
  std::byte* base;
  std::size_t bytes;
  boost::context::stack_context allocate() {
    // Stacks that begin at one place of their pages would share a few lines of the first cache.
    static std::size_t made = 0;
    const std::size_t apart = made++ * 448 % page;
    boost::context::stack_context context;
    context.sp = base + bytes - apart;
    context.size = bytes - apart;
    return context;
  }
  void deallocate(boost::context::stack_context&) {}
};

std::byte* map_stack(std::size_t bytes) {
  void* memory =
      mmap(nullptr, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) throw std::bad_alloc();
  return static_cast<std::byte*>(memory) + page;
}

// Says who entered.
struct Outside {
  boost::context::fiber context;
  const void* stack = nullptr;
  std::size_t bytes = 0;
};
Outside outside;
Fiber* leaving = nullptr;  // who hands over; nullptr for outside

}  // namespace

Fiber::Fiber() : stack_(map_stack(stack_bytes)) {
  inside_ = boost::context::fiber(std::allocator_arg, GivenStack{stack_, stack_bytes},
                                  [this](boost::context::fiber&& previous) {
                                    arrived(std::move(previous), nullptr);
                                    for (;;) go_on_with((*job_)());
                                    return boost::context::fiber();
                                  });
}

void Fiber::arrived(boost::context::fiber&& previous, void* fake_stack) {
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &stack, &bytes);
  if (leaving) {
    leaving->inside_ = std::move(previous);
  } else {
    outside = {std::move(previous), stack, bytes};
  }
}

void Fiber::enter() {
  leaving = nullptr;
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, stack_bytes);
  boost::context::fiber previous = std::move(inside_).resume();
  arrived(std::move(previous), fake_stack);
}

void Fiber::go_on_with(Fiber* next) {
  if (next == this) return;
  leaving = this;
  boost::context::fiber previous;
  if (next) {
    __sanitizer_start_switch_fiber(&fake_stack_, next->stack_, stack_bytes);
    previous = std::move(next->inside_).resume();
  } else {
    __sanitizer_start_switch_fiber(&fake_stack_, outside.stack, outside.bytes);
    previous = std::move(outside.context).resume();
  }
  arrived(std::move(previous), fake_stack_);
}

}  // namespace hayloft::simt
