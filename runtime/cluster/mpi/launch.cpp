#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "runtime/cluster/mpi/mpi_ranks.h"

namespace hayloft::runtime::cluster {
namespace {

std::optional<int> number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return {};
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stop != end) return {};
  return number;
}

// By launcher; Slurm sets the number of tasks in every job, but a rank for those that srun starts.
struct Variables {
  const char* rank;
  const char* ranks;
  const char* on_this_machine;
  const char* rank_on_this_machine;
};
constexpr Variables launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    {"PMIX_RANK", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"}};

}  // namespace

std::optional<Launch> find_launch() {
  for (const Variables& launcher : launchers) {
    const std::optional<int> rank = number_of(launcher.rank), ranks = number_of(launcher.ranks);
    if (!rank || !ranks || *rank < 0 || *ranks <= *rank) continue;
    // A step of a Slurm job has the job's SLURM_NTASKS_PER_NODE, even where it has fewer tasks.
    const int here = std::clamp(number_of(launcher.on_this_machine).value_or(1), 1, *ranks);
    // A launcher that does not say where a rank is mostly deals them out so many to each machine: no two of one share a
    // number then.
    return Launch{*rank, *ranks, here, std::max(0, number_of(launcher.rank_on_this_machine).value_or(*rank % here))};
  }
  return {};
}

}  // namespace hayloft::runtime::cluster
