#pragma once

#include <cstdint>

// Declares what libhayloft-mpi.so has for the program: MPI behind a table of C functions, so that a program that runs
// alone never loads MPI, and no C++ crosses between the two. Functions return null, or what went wrong as a text that
// stays until the next call.
extern "C" {

struct HayloftMpi {
  const char* (*start)(int* rank, int* ranks);
  const char* (*all_gather)(const void* own, void* all, std::uint64_t bytes);  // of each rank
  const char* (*broadcast)(void* data, std::uint64_t bytes);                   // from rank 0
  const char* (*await)(void* data, std::uint64_t bytes);  // likewise, of what may be long in coming
  void (*stop)();                                         // waits for the others
  void (*abort)();                                        // ends all ranks; does not return
};

// The function that the library exports, by this name. Null for another version of the table.
inline constexpr int hayloft_mpi_version = 2;
using HayloftMpiEntry = const HayloftMpi* (*)(int version);
inline constexpr const char* hayloft_mpi_entry = "hayloft_mpi";
}
