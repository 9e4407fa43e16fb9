#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simt/ptx/module/kernel.h"

namespace hayloft::simt::ptx {

// The statements of the file outside of its kernels.
struct Surroundings {
  std::set<std::string, std::less<>> dynamic_shared;  // names of the dynamic shared memory, which is one piece
  std::set<int> foreign_files;                        // numbers of source files that reports do not name
};

// The kernel whose ".entry" begins `text`, on this line of its file. Throws std::runtime_error naming the line: an
// opcode or directive that is not known, operands of another number or width than the opcode has, a name that is not
// declared.
Kernel parse_kernel(std::string_view text, int line, const Surroundings& surroundings);

}  // namespace hayloft::simt::ptx
