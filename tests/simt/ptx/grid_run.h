#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/simt/device/machine.h"
#include "tests/simt/ptx/address_spaces.h"
#include "tests/simt/ptx/module/module.h"
#include "tests/simt/ptx/schedule.h"
#include "tests/simt/ptx/traffic.h"

namespace hayloft::simt::ptx {

struct RunOptions {
  ScheduleKind schedule = ScheduleKind::lockstep;
  Races races = Races::shared;  // that are failures
  bool traffic = false;         // whether accesses to memory are counted
};

struct RunResult {
  std::string failure;                  // one line that names the instruction and the thread; empty: none
  std::uint64_t instructions = 0;       // of threads
  std::vector<std::uint64_t> issues{};  // per instruction of the kernel: by warps, whatever number of lanes took part
  Traffic traffic{};                    // where it was asked for
};

// Runs a kernel of the module on this grid: blocks one after another in a random order, threads as the schedule has it.
// `parameters` are the bytes of the parameter space. Failures are faults of a lane (address_spaces.h, races.h), lanes
// of a warp or threads of a block that wait for each other at different places or for threads that have exited, and a
// block larger than the kernel allows.
RunResult run_kernel(const Module& module, const Kernel& kernel, const Grid& grid, std::span<std::byte> parameters,
                     const AddressSpaces::FindPiece& find_piece, const RunOptions& options, std::mt19937_64& random);

}  // namespace hayloft::simt::ptx
