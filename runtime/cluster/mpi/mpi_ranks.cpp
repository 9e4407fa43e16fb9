#include "runtime/cluster/mpi/mpi_ranks.h"

#include <dlfcn.h>

#include <cstdlib>

#include "offload/error.h"
#include "runtime/cluster/mpi/functions.h"

namespace hayloft::runtime::cluster {
namespace {

void require(const char* problem) {
  if (problem == nullptr) return;
  fail(
      "the ranks cannot talk to each other any more: {}; is one of them lost, or started with another command or other "
      "options?",
      problem);
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

std::string missing_mpi() {
  return "this hayloft was built without MPI: install libopenmpi-dev and build it again";
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
