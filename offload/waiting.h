#pragma once

#include <filesystem>

// Pipes without anybody at their other end, and terminals where nobody types: a program that waits there still wants to
// know that it was interrupted.
namespace hayloft::offload {

// Calls `check` several times a second while one of the functions below waits; what it throws ends the wait and is
// passed on. For programs, once at their start: by itself the library waits without end. nullptr: no longer.
void check_while_waiting(void (*check)());

// A descriptor for reading, closed on exec, as ::open() gives it: -1 with errno when it cannot be opened. A named pipe
// is waited for until somebody writes to it.
int open_to_read(const std::filesystem::path& path);

// The same for writing to a file that is there: a named pipe is waited for until somebody reads it.
int open_to_write(const std::filesystem::path& path);

// Returns when the descriptor has bytes or has come to its end.
void wait_for_input(int descriptor);

}  // namespace hayloft::offload
