#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace hayloft::simt {

// A stack of its own that runs jobs one after another. resume() enters the job, or goes on with it, until it suspends
// itself or ends; a fiber may be resumed by another processor thread than before. The address sanitizer is told of
// every switch.
class Fiber {
 public:
  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(const std::function<void()>& job) { job_ = &job; }  // outlives the job; must not throw
  void resume();
  void suspend();  // called by the job

 private:
  // 128 KiB hold the frames of an instrumented kernel; below lies a page that may not be touched.
  static constexpr std::size_t stack_bytes = std::size_t{128} << 10;
  void entered();

  std::byte* stack_;
  const std::function<void()>* job_ = nullptr;
  boost::context::fiber inside_;   // while suspended
  boost::context::fiber outside_;  // whoever resumed, while running
  void* fake_stack_ = nullptr;     // the sanitizer's, while suspended
  const void* outside_stack_ = nullptr;
  std::size_t outside_bytes_ = 0;
};

}  // namespace hayloft::simt
