#pragma once

#include <stdexcept>

// Ctrl-C stops cleanly: the signal only raises a flag, and the program's callbacks turn the flag into an exception. A
// second Ctrl-C ends the program at once.
namespace hayloft::cli {

struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

void catch_interrupts();  // of SIGINT; at the start, and anew to go on after Interrupted: what came before is forgotten
void check_interrupted();  // throws Interrupted once Ctrl-C was pressed

}  // namespace hayloft::cli
