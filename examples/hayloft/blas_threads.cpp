#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

// OpenBLAS starts threads when it is loaded, one for every other processor with 128 MiB of address space each. Nothing
// here uses them. But where the process has a limit of memory they take much of it, and one that is denied its memory
// tries for ever and keeps the process from ending; and where it has a limit of threads OpenBLAS raises SIGINT. All of
// that is before main(), and only the environment tells it not to. So where there is such a limit the program starts
// again, with OPENBLAS_NUM_THREADS, before any library has been initialised.
namespace hayloft::cli {
namespace {

bool below(int resource, rlim_t many) {
  rlimit limit{};
  return ::syscall(SYS_prlimit64, 0, resource, nullptr, &limit) == 0 && limit.rlim_cur < many;
}

bool needs_room() {
  constexpr rlim_t enough_threads = 4096;  // for one on each processor and what else the user runs
  return below(RLIMIT_AS, RLIM_INFINITY) || below(RLIMIT_DATA, RLIM_INFINITY) || below(RLIMIT_NPROC, enough_threads);
}

bool begins_with(const char* text, const char* start, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    if (text[i] != start[i]) return false;
  }
  return true;
}

// Runs before the constructors of the libraries, so with nothing but system calls; it is compiled without sanitizers,
// which have not been initialised either. Returns when there is no need or no way: then on with the threads.
void forbid_blas_threads(int, char** arguments, char** environment) {
  static char setting[] = "OPENBLAS_NUM_THREADS=1";
  constexpr std::size_t name_bytes = sizeof setting - 2;  // up to and with the equals sign
  constexpr std::size_t most = 4096;
  static char* all[most + 2];
  std::size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (count == most || begins_with(environment[count], setting, name_bytes)) return;
    all[count] = environment[count];
  }
  if (!needs_room()) return;
  all[count] = setting;
  ::syscall(SYS_execve, "/proc/self/exe", arguments, all);
}

[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)(int, char**, char**) = forbid_blas_threads;

}  // namespace
}  // namespace hayloft::cli
