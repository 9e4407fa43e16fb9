#include "examples/hayloft/streams/interrupt.h"

#include <csignal>

namespace hayloft::cli {
namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void raise_flag(int) {
  interrupted = 1;
}

}  // namespace

void catch_interrupts() {
  interrupted = 0;
  struct sigaction action {};
  action.sa_handler = raise_flag;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
}

void check_interrupted() {
  if (interrupted) throw Interrupted();
}

}  // namespace hayloft::cli
