#include "examples/hayloft/process/interrupt.h"

#include <csignal>

namespace hayloft::cli {
namespace {

volatile std::sig_atomic_t flag = 0;

extern "C" void raise_flag(int) {
  flag = 1;
}

}  // namespace

void catch_interrupts() {
  flag = 0;
  struct sigaction action {};
  action.sa_handler = raise_flag;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
}

void ignore_interrupts() {
  std::signal(SIGINT, SIG_IGN);
}

bool interrupted() {
  return flag != 0;
}

void check_interrupted() {
  if (interrupted()) throw Interrupted();
}

}  // namespace hayloft::cli
