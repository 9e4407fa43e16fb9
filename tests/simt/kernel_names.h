#pragma once

#include <string>

namespace hayloft::simt {

// The demangled name of a function of this program, its own symbol table asked; an address when it has none.
std::string kernel_name(const void* function);

}  // namespace hayloft::simt
