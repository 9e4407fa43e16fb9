#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <vector>

namespace hayloft::offload {

// The limits that control groups (containers, systemd slices, batch systems) put on this process. Limits nest: each
// group on the way up to the mounted root counts, under cgroup v2, v1 and both together. A file that is missing or not
// a number is no limit. Where the groups lie is read once; the limits at each call.
class Cgroup {
 public:
  static constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

  // process: the folder with `cgroup` and `mountinfo` of the process.
  explicit Cgroup(const std::filesystem::path& process = "/proc/self");

  std::uint64_t memory_limit_bytes() const;  // `unlimited` for none
  // Returns what may still be taken under the tightest limit. File pages not used lately count as free, as the kernel
  // drops them first.
  std::uint64_t memory_available_bytes() const;
  double processors() const;  // CPU time per time; infinity for no quota

 private:
  struct Group {
    std::filesystem::path folder;
    bool v2;
  };
  std::vector<Group> memory_;
  std::vector<Group> cpu_;
};

}  // namespace hayloft::offload
