#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tests/simt/ptx/grid_run.h"

namespace hayloft::simt {
class Memory;
}

// nvcc's PTX behind the launches of the double.
namespace hayloft::simt::ptx {

// HAYLOFT_PTX names folders of .ptx files, separated by colons. With them:
//   HAYLOFT_PTX_SCHEDULE  the order of threads (schedule.h; lockstep if not set)
//   HAYLOFT_PTX_RACES     where races are looked for: ignored, shared or all (races.h; shared if not set)
//   HAYLOFT_PTX_ULP       how far off .approx instructions are (approximation.h; 0 if not set)
//   HAYLOFT_PTX_COUNTS    a file that gets a line per kernel when the process ends: launches, blocks, instructions of
//                         threads, its name
//   HAYLOFT_PTX_REACHED   a file that gets a line per kernel: the .ptx file, and the lines that threads have come to
//   HAYLOFT_PTX_COSTS     a file that gets a line of JSON per kernel (launch_counts.h)
struct LaunchOptions {
  std::vector<std::filesystem::path> folders;  // empty: kernels run as C++
  RunOptions run{};
  unsigned approximation_ulp = 0;
  std::string counts_file{};
  std::string reached_file{};
  std::string costs_file{};
};
LaunchOptions options_from_environment();  // throws std::invalid_argument

// Sets what launches use from now on, for tests of one process; at first what the environment says.
void use(const LaunchOptions& options);
bool enabled();

// Runs the kernel of this demangled name from the PTX. `arguments` are its parameters as the host laid them out;
// `shared_limit` is the most shared memory, static and dynamic, that the kernel may have. Returns what went wrong in
// one line, or nothing. Also wrong: no PTX has this kernel, or it has other parameters.
std::string launch(const std::string& kernel, const Grid& grid, std::span<const std::span<const std::byte>> arguments,
                   std::size_t shared_limit, const Memory& memory, std::mt19937_64& random);

}  // namespace hayloft::simt::ptx
