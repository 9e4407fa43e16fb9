#include "tests/simt/ptx/launch_counts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace hayloft::simt::ptx {
namespace {

std::string json(const SpaceTraffic& traffic) {
  return fmt::format(R"({{"accesses": {}, "transactions": {}, "read_bytes": {}, "written_bytes": {}}})",
                     traffic.accesses, traffic.transactions, traffic.read_bytes, traffic.written_bytes);
}

}  // namespace

void LaunchCounts::add(const Grid& grid, const RunResult& result) {
  const std::uint64_t all = std::uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z;
  const unsigned each = grid.threads.x * grid.threads.y * grid.threads.z;
  ++launches;
  blocks += all;
  warps += all * ((each + kLanes - 1) / kLanes);
  threads = std::max(threads, each);
  dynamic_shared = std::max(dynamic_shared, grid.shared_bytes);
  instructions += result.instructions;
  issues.resize(result.issues.size());
  for (std::size_t i = 0; i < issues.size(); ++i) issues[i] += result.issues[i];
  traffic += result.traffic;
}

std::string counts_line(const LaunchCounts& counts, const std::string& /* file */, const Kernel& kernel) {
  return fmt::format("{} {} {} {}", counts.launches, counts.blocks, counts.instructions, kernel.name);
}

std::string reached_line(const LaunchCounts& counts, const std::string& file, const Kernel& kernel) {
  std::string line = file;
  for (std::size_t i = 0; i < counts.issues.size(); ++i) {
    if (counts.issues[i] > 0) line += fmt::format(" {}", kernel.code[i].line);
  }
  return line;
}

std::string costs_line(const LaunchCounts& counts, const std::string& file, const Kernel& kernel) {
  const Traffic& traffic = counts.traffic;
  std::string lines;
  for (std::size_t i = 0; i < counts.issues.size(); ++i) {
    if (counts.issues[i] > 0) {
      lines += fmt::format("{}\"{}\": {}", lines.empty() ? "" : ", ", kernel.code[i].line, counts.issues[i]);
    }
  }
  return fmt::format(
      R"({{"kernel": "{}", "file": "{}", "launches": {}, "blocks": {}, "warps": {}, "threads": {}, )"
      R"("dynamic_shared": {}, "thread_instructions": {}, )"
      R"("warp_instructions": {}, "device": {}, "pinned": {}, "pinned_lines": {}, "pinned_pages": {}, "shared": {}, )"
      R"("lines": {{{}}}}})",
      kernel.name, file, counts.launches, counts.blocks, counts.warps, counts.threads, counts.dynamic_shared,
      counts.instructions, std::accumulate(counts.issues.begin(), counts.issues.end(), std::uint64_t{0}),
      json(traffic.device), json(traffic.pinned), traffic.pinned_lines, traffic.pinned_pages, json(traffic.shared),
      lines);
}

}  // namespace hayloft::simt::ptx
