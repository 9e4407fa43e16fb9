#include "offload/host/topology.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

#include "offload/error.h"
#include "offload/text/format.h"

namespace hayloft::offload {
namespace {

namespace fs = std::filesystem;

// OS indices of the processors the calling thread may be scheduled on, ascending.
std::vector<int> affinity() {
  std::vector<int> processors;
  for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {  // the kernel refuses a mask shorter than its own
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(capacity), [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    if (!set) break;
    if (sched_getaffinity(0, bytes, set.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    for (int i = 0; i < capacity; ++i) {
      if (CPU_ISSET_S(i, bytes, set.get())) processors.push_back(i);
    }
    break;
  }
  return processors;
}

// A line of /proc/meminfo, in bytes; 0 if there is none.
std::uint64_t meminfo(std::string_view key) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {  // "MemTotal:       24684096 kB"
    if (!line.starts_with(key) || line.size() <= key.size() || line[key.size()] != ':') continue;
    return std::strtoull(line.c_str() + key.size() + 1, nullptr, 10) * 1024;
  }
  return 0;
}

std::vector<PagePool> read_huge_pages() {
  std::vector<PagePool> pools;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/sys/kernel/mm/hugepages", error)) {
    const std::string folder = entry.path().filename().string();  // hugepages-2048kB
    constexpr std::string_view prefix = "hugepages-";
    if (!folder.starts_with(prefix)) continue;
    std::uint64_t kib = 0;
    std::from_chars(folder.data() + prefix.size(), folder.data() + folder.size(), kib);
    std::uint64_t free = 0;
    std::uint64_t promised = 0;  // to mappings that have not touched them yet
    std::ifstream(entry.path() / "free_hugepages") >> free;
    std::ifstream(entry.path() / "resv_hugepages") >> promised;
    if (kib > 0 && free > promised) pools.push_back({kib * 1024, free - promised});
  }
  std::sort(pools.begin(), pools.end(), [](const auto& a, const auto& b) { return a.page_bytes > b.page_bytes; });
  return pools;
}

struct HwlocDelete {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};

}  // namespace

int usable_processors() {
  const std::vector<int> allowed = affinity();
  const int count =
      allowed.empty() ? static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)) : static_cast<int>(allowed.size());
  const double quota = std::floor(Cgroup().processors());
  return std::max(1, quota < count ? static_cast<int>(quota) : count);
}

Topology::Topology() : processors_(usable_processors()), huge_pages_(read_huge_pages()) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) fail("hwloc cannot start: {}", std::strerror(errno));
  const std::unique_ptr<hwloc_topology, HwlocDelete> machine(raw);
  if (hwloc_topology_load(raw) != 0) {
    fail("hwloc cannot read this machine's topology: {}; is /sys mounted?", std::strerror(errno));
  }

  const std::vector<int> allowed = affinity();
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(raw, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    NumaNode& found =
        nodes_.emplace_back(NumaNode{static_cast<int>(node->os_index), node->attr->numanode.local_memory, {}});
    for (const int processor : allowed) {
      if (hwloc_bitmap_isset(node->cpuset, static_cast<unsigned>(processor))) found.processors.push_back(processor);
    }
  }

  sockets_ = std::max(1, hwloc_get_nbobjs_by_type(raw, HWLOC_OBJ_PACKAGE));
  const hwloc_obj_t package = hwloc_get_obj_by_type(raw, HWLOC_OBJ_PACKAGE, 0);
  const char* model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : nullptr;
  model_ = model && *model ? model : "unknown processor";  // 64-bit Arm has no model name

  memory_bytes_ = std::min(meminfo("MemTotal"), cgroup_.memory_limit_bytes());
}

std::uint64_t Topology::available_bytes() const {
  std::uint64_t bytes = std::min(meminfo("MemAvailable"), cgroup_.memory_available_bytes());
  for (const PagePool& pool : read_huge_pages()) bytes += pool.page_bytes * pool.free_pages;
  return bytes;
}

std::string Topology::describe() const {
  const auto plural = [](std::size_t n, std::string_view what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  return fmt::format("{}, {}, {}, {}, {} memory", model_, plural(static_cast<std::size_t>(sockets_), "socket"),
                     plural(nodes_.size(), "NUMA node"), plural(static_cast<std::size_t>(processors_), "processor"),
                     format_bytes(memory_bytes_));
}

}  // namespace hayloft::offload
