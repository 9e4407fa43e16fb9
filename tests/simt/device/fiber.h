#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <functional>

namespace hayloft::simt {

// A stack of its own that runs jobs one after another. Fibers hand over to each other without coming back to whoever
// entered the first: half as many switches as by way of a scheduler. Any processor thread may enter, one at a time.
//
// The stacks of many fibers lie in one hall, which is what the address sanitizer takes for the stack: it is told of
// switches from hall to hall alone.
class Fiber {
 public:
  // Returns the fiber to go on with, or nullptr to go back to enter(). Outlives its run; must not throw.
  using Job = std::function<Fiber*()>;

  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void start(const Job& job) { job_ = &job; }
  void enter();                   // from outside of any: comes back when a fiber goes on with nullptr
  void go_on_with(Fiber* next) {  // called by the job: comes back when somebody goes on with this one
    if (next == this) return;
    if (!next || next->hall_ != hall_) tell_of_switch(next);
    arrived(boost::context::detail::jump_fcontext(next ? next->context_ : outside_, &context_));
  }

 private:
  using Context = boost::context::detail::fcontext_t;
  using Arrival = boost::context::detail::transfer_t;  // who comes, and where its context is kept while it is away
  struct Hall;

  static void run(Arrival maker);
  static Hall* hall_with_room();
  void tell_of_switch(Fiber* next);
  void arrived(Arrival from) {
    *static_cast<Context*>(from.data) = from.fctx;
    if (told_) end_told_switch(hall_);
  }
  static void end_told_switch(Hall* into);

  Context context_ = nullptr;  // while suspended
  Hall* const hall_;
  const Job* job_ = nullptr;

  static inline Context outside_ = nullptr;  // of who entered
  static inline bool told_ = false;          // between the two calls of the sanitizer
};

}  // namespace hayloft::simt
