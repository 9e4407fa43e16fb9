#include "examples/hayloft/process/ranks.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <optional>
#include <string_view>

#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/text/visible.h"
#include "runtime/cluster/mpi/mpi_ranks.h"

namespace hayloft::cli {
namespace {

using runtime::cluster::Launch;
using runtime::cluster::MpiRanks;

const Launch& launch() {
  static const Launch found = runtime::cluster::find_launch().value_or(Launch());
  return found;
}

std::unique_ptr<MpiRanks>& connection() {
  static std::unique_ptr<MpiRanks> mpi;
  return mpi;
}

#ifdef HAYLOFT_MPI_FROM_PROGRAM
std::filesystem::path library() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail("cannot tell where the program lies (/proc/self/exe: {})", error.message());
  return (program.parent_path() / HAYLOFT_MPI_FROM_PROGRAM).lexically_normal();
}
#endif

}  // namespace

runtime::cluster::Communicator& meet_ranks() {
#ifdef HAYLOFT_MPI_FROM_PROGRAM
  if (!connection()) {
    connection() = std::make_unique<MpiRanks>(library());
    if (first_rank()) std::signal(SIGTERM, say_ended);
  }
  return *connection();
#else
  throw runtime::cluster::SharedError(fmt::format("mpirun has started {} ranks, and {}, or start it alone",
                                                  rank_count(), runtime::cluster::missing_mpi()));
#endif
}

void say_ended(int) {
  static constexpr std::string_view line =
      "hayloft: the run ends: mpirun has stopped it, as it does when a rank is lost; the lines of mpirun name the "
      "rank\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(1);
}

bool over_ranks() {
  return launch().ranks > 1;
}

int rank_count() {
  return launch().ranks;
}

int ranks_on_machine() {
  return launch().on_this_machine;
}

int rank_on_machine() {
  return launch().rank_on_this_machine;
}

bool first_rank() {
  return launch().rank == 0;
}

void silence_other_ranks() {
  if (first_rank()) return;
  mute_messages();
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) ::dup2(nowhere, STDOUT_FILENO);
}

ProgressSink progress_sink() {
  ProgressSink sink = stderr_progress();
  if (!first_rank()) sink.write = [](std::string_view) {};
  return sink;
}

void let_first_rank_speak(const std::string& message) {
  if (first_rank()) return;
  ::sleep(2);
  write_error(fmt::format("hayloft: rank {}: {}\n", launch().rank, visible(message, Lines::joined)));
}

runtime::cluster::Communicator* ranks() {
  return connection().get();
}

runtime::cluster::Communicator& peers() {
  return connection() ? *connection() : runtime::cluster::alone();
}

void leave_ranks() {
  std::signal(SIGTERM, SIG_DFL);
  connection().reset();
}

void abort_ranks() {
  if (connection()) connection()->abort();
}

}  // namespace hayloft::cli
