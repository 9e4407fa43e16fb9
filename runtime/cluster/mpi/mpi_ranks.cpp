#include "runtime/cluster/mpi/mpi_ranks.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "offload/error.h"
#include "runtime/cluster/mpi/functions.h"

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

void require(const char* problem) {
  if (problem != nullptr) fail("the ranks cannot talk to each other any more: {}; is one of them lost?", problem);
}

const HayloftMpi& load_mpi(const std::filesystem::path& library) {
  // Its symbols are those of everyone: Open MPI loads parts of itself that look for them.
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    fail("MPI cannot be loaded: {}; install hayloft with -DHAYLOFT_MPI=ON, or start it alone", ::dlerror());
  const auto entry = reinterpret_cast<HayloftMpiEntry>(::dlsym(handle, hayloft_mpi_entry));
  const HayloftMpi* const mpi = entry == nullptr ? nullptr : entry(hayloft_mpi_version);
  if (mpi == nullptr) fail("{}: is of another version of hayloft; install both together", library.string());
  return *mpi;
}

}  // namespace

std::optional<Launch> find_launch() {
  for (const Variables& launcher : launchers) {
    const std::optional<int> rank = number_of(launcher.rank), ranks = number_of(launcher.ranks);
    if (!rank || !ranks || *rank < 0 || *ranks <= *rank) continue;
    const int here = std::max(1, number_of(launcher.on_this_machine).value_or(1));
    // Who does not say where a rank is mostly deals them out so many to each machine: no two of one share a number
    // then.
    return Launch{*rank, *ranks, here, std::max(0, number_of(launcher.rank_on_this_machine).value_or(*rank % here))};
  }
  return {};
}

MpiRanks::MpiRanks(const std::filesystem::path& library) : mpi_(&load_mpi(library)) {
  if (const char* const problem = mpi_->start(&rank_, &ranks_)) fail("MPI does not start: {}", problem);
}

MpiRanks::~MpiRanks() {
  mpi_->stop();
}

void MpiRanks::abort() const {
  mpi_->abort();
  std::abort();
}

void MpiRanks::gather(std::span<const std::byte> own, std::span<std::byte> all) {
  require(mpi_->all_gather(own.data(), all.data(), own.size()));
}

void MpiRanks::cast(std::span<std::byte> data) {
  require(mpi_->broadcast(data.data(), data.size()));
}

void MpiRanks::cast_late(std::span<std::byte> data) {
  require(mpi_->await(data.data(), data.size()));
}

}  // namespace hayloft::runtime::cluster
