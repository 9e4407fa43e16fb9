#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "offload/host/threads.h"
#include "offload/host/topology.h"
#include "runtime/machine/profile.h"

// Read bandwidth of the processors from the memory of each NUMA node: the most that a search beside the memory can
// reach.
namespace hayloft::runtime::plan {

// The median seconds of several turns of some work.
using MedianSeconds = std::function<double(const std::function<void()>& turn)>;

// 1, 2, 4 ... and `all`.
std::vector<int> thread_counts(int all);

// Sets near_read, all threads over `memory`, and near_reads: every node that has memory, by 1, 2, 4 ... and all
// threads. On a machine of one node that is `memory` as well; otherwise as much of each node's own, 512 MiB at most.
// Leaves out memory that cannot be placed, and profile.skipped says why.
void measure_numa_bandwidth(MachineProfile& profile, const offload::Topology& topology, const offload::Threads& threads,
                            std::span<const std::byte> memory, const MedianSeconds& median);

}  // namespace hayloft::runtime::plan
