#pragma once

#include <string>

namespace hayloft::cli {

// Returns what --version prints: a line for the program, and one for each thing that it was built with, runs on, or
// lacks.
std::string version_text();

}  // namespace hayloft::cli
