#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace hayloft::simt {

// A stack of its own that runs jobs one after another. Fibers hand over to each other without coming back to whoever
// entered the first: half as many switches as by way of a scheduler. Any processor thread may enter, one at a time. The
// address sanitizer is told of every switch.
class Fiber {
 public:
  // Returns the fiber to go on with, or nullptr to go back to enter(). Outlives its run; must not throw.
  using Job = std::function<Fiber*()>;

  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(const Job& job) { job_ = &job; }
  void enter();                  // from outside of any: comes back when a fiber goes on with nullptr
  void go_on_with(Fiber* next);  // called by the job: comes back when somebody goes on with this one

 private:
  // 128 KiB hold the frames of an instrumented kernel; below lies a page that may not be touched.
  static constexpr std::size_t stack_bytes = std::size_t{128} << 10;
  static void arrived(boost::context::fiber&& previous, void* fake_stack);

  std::byte* stack_;
  const Job* job_ = nullptr;
  boost::context::fiber inside_;  // while suspended
  void* fake_stack_ = nullptr;    // the sanitizer's, while suspended
};

}  // namespace hayloft::simt
