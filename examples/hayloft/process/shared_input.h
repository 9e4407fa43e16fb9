#pragma once

#include <string>

#include "examples/hayloft/process/text_input.h"

// Gives what comes to one process alone, on all ranks: standard input, which mpirun gives to the first, and Ctrl-C. All
// ranks make the same calls, once they have met. Alone: as if there were no ranks.
namespace hayloft::cli {

// read_text() of the first. Ends on all with Interrupted, and throws a SharedError where it cannot be read.
std::string read_text_together(const std::string& option, const std::string& path);

// LineInput of the first. Ends on all with Interrupted, and throws a SharedError when reading fails.
class SharedLines {
 public:
  bool next(std::string& line);

 private:
  LineInput input_;
};

// Throws Interrupted on all ranks once Ctrl-C has reached the first.
void check_interrupted_together();

}  // namespace hayloft::cli
