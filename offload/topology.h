#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hayloft::offload {

// What this process has to work with, read once through hwloc and cgroups. Immutable after construction.
struct NumaNode {
  int os_index;
  std::uint64_t memory_bytes;
  std::vector<int> processors;  // OS indices
};

struct PagePool {  // explicit huge pages the kernel keeps ready
  std::uint64_t page_bytes;
  std::uint64_t free_pages;
};

class Topology {
 public:
  Topology();  // throws Error if hwloc cannot read the machine

  const std::vector<NumaNode>& nodes() const { return nodes_; }
  int processors() const { return processors_; }                           // usable by this process
  std::uint64_t memory_bytes() const { return memory_bytes_; }             // physical, or the cgroup's limit if smaller
  std::uint64_t available_bytes() const;                                   // free or reclaimable now; read at each call
  const std::vector<PagePool>& huge_pages() const { return huge_pages_; }  // largest first, pools with free pages only
  std::string describe() const;  // one line: processor model, sockets, nodes, memory

 private:
  std::vector<NumaNode> nodes_;
  int processors_ = 1;
  std::uint64_t memory_bytes_ = 0;
  std::vector<PagePool> huge_pages_;
  std::string model_;
};

}  // namespace hayloft::offload
