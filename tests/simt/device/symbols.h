#pragma once

#include <cstddef>
#include <string>
#include <vector>

// Reads the program's own symbol table; a stripped program has none.
namespace hayloft::simt {

// The demangled name of a function; its address when the table has none.
std::string function_name(const void* function);

// A variable that a kernel declares __shared__.
struct SharedVariable {
  std::byte* data;
  std::size_t bytes;
  std::string name;  // demangled
  bool guarded;      // between red zones of the address sanitizer
  // Names what declares it, mangled; empty where that is not in the table, as it is inlined wherever it is called.
  std::string function;
};
const std::vector<SharedVariable>& shared_variables();

// Returns those that this kernel declares, and those of functions that are not in the table.
const std::vector<SharedVariable>& shared_variables(const void* kernel);

}  // namespace hayloft::simt
