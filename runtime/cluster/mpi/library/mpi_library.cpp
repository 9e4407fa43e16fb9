// libhayloft-mpi.so, the only code here that is compiled against MPI.
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <thread>

#include "runtime/cluster/mpi/functions.h"

namespace {

char problem[MPI_MAX_ERROR_STRING + 1];

const char* outcome(int code) {
  if (code == MPI_SUCCESS) return nullptr;
  int length = 0;
  if (MPI_Error_string(code, problem, &length) != MPI_SUCCESS) std::strcpy(problem, "an unknown error of MPI");
  return problem;
}

const char* start(int* rank, int* ranks) {
  int provided = 0;
  // Threads compute, and one of them talks at a time.
  if (const char* failed = outcome(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided))) return failed;
  if (provided < MPI_THREAD_SERIALIZED) return "this MPI cannot be called from a program with threads";
  // Errors come back instead of ending the process, which has a line to say first.
  if (const char* failed = outcome(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN))) return failed;
  if (const char* failed = outcome(MPI_Comm_rank(MPI_COMM_WORLD, rank))) return failed;
  return outcome(MPI_Comm_size(MPI_COMM_WORLD, ranks));
}

const char* all_gather(const void* own, void* all, std::uint64_t bytes) {
  if (bytes > INT_MAX) return "a message of more than 2 GiB";
  const int count = static_cast<int>(bytes);
  return outcome(MPI_Allgather(own, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD));
}

const char* broadcast(void* data, std::uint64_t bytes) {
  if (bytes > INT_MAX) return "a message of more than 2 GiB";
  return outcome(MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD));
}

// A rank that waits in a collective of MPI takes a processor all the while. This one looks again after a part of the
// time that it has waited already: in the midst of an answer nobody waits longer for it, and who has waited a second
// looks 200 times in the next.
const char* await(void* data, std::uint64_t bytes) {
  if (bytes > INT_MAX) return "a message of more than 2 GiB";
  MPI_Request request = MPI_REQUEST_NULL;
  if (const char* failed = outcome(MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD, &request))) {
    return failed;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (;;) {
    int there = 0;
    if (const char* failed = outcome(MPI_Test(&request, &there, MPI_STATUS_IGNORE))) return failed;
    if (there != 0) return nullptr;
    const Clock::duration waited = Clock::now() - start;
    if (waited < std::chrono::milliseconds(1)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / 16, std::chrono::milliseconds(5)));
    }
  }
}

void stop() {
  MPI_Finalize();
}

void abort_all() {
  MPI_Abort(MPI_COMM_WORLD, 1);
}

const HayloftMpi functions{start, all_gather, broadcast, await, stop, abort_all};

}  // namespace

extern "C" __attribute__((visibility("default"))) const HayloftMpi* hayloft_mpi(int version) {
  return version == hayloft_mpi_version ? &functions : nullptr;
}
