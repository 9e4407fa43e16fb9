#pragma once

#include <stdexcept>

// Ctrl-C stops cleanly: the signal only raises a flag, and the program's callbacks turn the flag into an exception. A
// second Ctrl-C ends the program at once.
namespace hayloft::cli {

struct Interrupted : std::exception {
  enum class Of { this_process, all_ranks };  // who ends: where ranks have told each other, nobody has to be ended
  explicit Interrupted(Of whom = Of::this_process) : of(whom) {}
  const char* what() const noexcept override { return "interrupted"; }
  Of of;
};

void catch_interrupts();  // of SIGINT; at the start, and anew to go on after Interrupted: what came before is forgotten
void ignore_interrupts();
bool interrupted();        // Ctrl-C was pressed
void check_interrupted();  // throws Interrupted then

}  // namespace hayloft::cli
