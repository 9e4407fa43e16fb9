#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/host/cgroup.h"

namespace hayloft::offload {

// Returns how many processors this process may use: its affinity mask, bounded by the cgroups' CPU quota (rounded down,
// at least 1).
int usable_processors();

// Memory, and the processors beside it, with the same access time to it.
struct NumaNode {
  int os_index;
  std::uint64_t memory_bytes;
  std::vector<int> processors;  // OS indices, only those this process may run on; ascending, empty for memory alone
};

// Explicit huge pages of one size that the kernel keeps ready.
struct PagePool {
  std::uint64_t page_bytes;
  std::uint64_t free_pages;
};

// Knows the processors, memory and nodes that this process has to work with, read once through hwloc and cgroups.
// Immutable after construction, thread-safe.
class Topology {
 public:
  Topology();  // throws Error if hwloc cannot read the machine

  const std::vector<NumaNode>& nodes() const { return nodes_; }
  int processors() const { return processors_; }                // usable_processors() at construction
  std::uint64_t memory_bytes() const { return memory_bytes_; }  // physical, or the cgroup's limit if smaller
  // Free or reclaimable now, within the cgroups' limits, and the explicit huge pages that are free. Read at each call.
  std::uint64_t available_bytes() const;
  const std::vector<PagePool>& huge_pages() const { return huge_pages_; }  // largest first, pools with free pages only
  std::string describe() const;  // one line: processor model, sockets, nodes, memory

 private:
  std::vector<NumaNode> nodes_;
  int processors_ = 1;
  std::uint64_t memory_bytes_ = 0;
  std::vector<PagePool> huge_pages_;
  std::string model_;
  int sockets_ = 1;
  Cgroup cgroup_;
};

}  // namespace hayloft::offload
