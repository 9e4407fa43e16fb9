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
    boost::context::stack_context context;
    context.sp = base + bytes;
    context.size = bytes;
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

}  // namespace

Fiber::Fiber() : stack_(map_stack(stack_bytes)) {
  inside_ = boost::context::fiber(std::allocator_arg, GivenStack{stack_, stack_bytes},
                                  [this](boost::context::fiber&& outside) {
                                    outside_ = std::move(outside);
                                    entered();
                                    for (;;) {
                                      (*job_)();
                                      suspend();
                                    }
                                    return std::move(outside_);
                                  });
}

void Fiber::entered() {
  __sanitizer_finish_switch_fiber(fake_stack_, &outside_stack_, &outside_bytes_);
}

void Fiber::resume() {
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_, stack_bytes);
  inside_ = std::move(inside_).resume();
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void Fiber::suspend() {
  __sanitizer_start_switch_fiber(&fake_stack_, outside_stack_, outside_bytes_);
  outside_ = std::move(outside_).resume();
  entered();
}

}  // namespace hayloft::simt
