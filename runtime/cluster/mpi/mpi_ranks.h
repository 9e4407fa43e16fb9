#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "runtime/peers/communicator.h"

struct HayloftMpi;

namespace hayloft::runtime::cluster {

// Knows what mpirun has told this process by its environment, before MPI is there.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int on_this_machine = 1;       // of them
  int rank_on_this_machine = 0;  // this process's number among those
};
// None where it was started alone. Knows Open MPI, MPICH and its kin, and Slurm with PMIx.
std::optional<Launch> find_launch();

// Why a program that mpirun has started cannot use MPI where it was built without, and what to do.
std::string missing_mpi();

// The ranks of an MPI program, from MPI's start to its end. One in a process.
class MpiRanks : public Communicator {
 public:
  // Loads libhayloft-mpi.so. Throws Error where there is none, or MPI does not start.
  explicit MpiRanks(const std::filesystem::path& library);
  ~MpiRanks() override;  // waits for the other ranks

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  [[noreturn]] void abort() const;  // ends all ranks at once

 protected:
  void gather(std::span<const std::byte> own, std::span<std::byte> all) override;
  void cast(std::span<std::byte> data) override;
  void cast_late(std::span<std::byte> data) override;

 private:
  const HayloftMpi* mpi_ = nullptr;
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace hayloft::runtime::cluster
