#include "runtime/machine/numa_bandwidth.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "offload/host/pages.h"
#include "offload/host/read_memory.h"
#include "offload/text/format.h"

namespace hayloft::runtime::plan {
namespace {

constexpr std::uint64_t most_placed = std::uint64_t{512} << 20;
constexpr std::uint64_t touched = std::uint64_t{1} << 20;  // at a time

// Memory of one node as an arena would have it, written once. Empty when the system refuses.
class PlacedMemory {
 public:
  PlacedMemory(std::uint64_t bytes, int node, const offload::Threads& threads)
      : pages_(offload::map_pages(bytes, bytes, {})) {
    if (!pages_.data) return;
    offload::prefer_node(pages_.data, bytes, node);
    threads.parallel_for(static_cast<std::int64_t>(bytes / touched), 1, [&](std::int64_t begin, std::int64_t end) {
      std::fill(pages_.data + begin * static_cast<std::int64_t>(touched),
                pages_.data + end * static_cast<std::int64_t>(touched), std::byte{1});
    });
  }
  ~PlacedMemory() { offload::unmap_pages(pages_); }
  PlacedMemory(const PlacedMemory&) = delete;
  PlacedMemory& operator=(const PlacedMemory&) = delete;

  std::span<const std::byte> bytes() const { return {pages_.data, pages_.bytes}; }

  // Wishes about places are granted as far as a node has room.
  bool lies_on(int node) const {
    for (std::uint64_t at = 0; at < pages_.bytes; at += pages_.bytes / 16) {
      if (offload::node_of(pages_.data + at) != node) return false;
    }
    return true;
  }

 private:
  offload::Pages pages_;
};

}  // namespace

std::vector<int> thread_counts(int all) {
  std::vector<int> counts;
  for (int count = 1; count < all; count *= 2) counts.push_back(count);
  counts.push_back(all);
  return counts;
}

void measure_numa_bandwidth(MachineProfile& profile, const offload::Topology& topology, const offload::Threads& threads,
                            std::span<const std::byte> memory, const MedianSeconds& median) {
  std::atomic<std::uint64_t> sink = 0;  // keeps the reads
  const auto rate = [&](std::span<const std::byte> bytes, const offload::Threads& by) {
    const double seconds = median([&] { sink += offload::read_memory(bytes, by); });
    return static_cast<double>(offload::bytes_read(bytes.size())) / seconds / 1e9;
  };
  const auto measure = [&](int node, std::span<const std::byte> bytes) {
    for (const int count : thread_counts(threads.count())) {
      if (count == threads.count()) {
        profile.near_reads.push_back({node, count, rate(bytes, threads)});
      } else {
        profile.near_reads.push_back({node, count, rate(bytes, offload::Threads(count))});
      }
    }
  };
  std::vector<int> nodes;
  for (const offload::NumaNode& node : topology.nodes()) {
    if (node.memory_bytes > 0) nodes.push_back(node.os_index);
  }
  if (nodes.size() < 2) {
    measure(nodes.empty() ? 0 : nodes.front(), memory);
    profile.near_read = profile.near_reads.back().rate;
    return;
  }
  profile.near_read = rate(memory, threads);
  const std::uint64_t bytes = std::min<std::uint64_t>(memory.size(), most_placed) / touched * touched;
  for (const int node : nodes) {
    const PlacedMemory placed(bytes, node, threads);
    if (!placed.bytes().empty() && placed.lies_on(node)) {
      measure(node, placed.bytes());
    } else {
      profile.skipped.push_back(
          fmt::format("reading memory of node {}: the system gives no {} of it", node, format_bytes(bytes)));
    }
  }
  // Nothing says where memory lies, as in some containers: it is what the first node would have.
  if (profile.near_reads.empty()) measure(nodes.front(), memory);
}

}  // namespace hayloft::runtime::plan
