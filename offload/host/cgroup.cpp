#include "offload/host/cgroup.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "offload/text/list.h"

namespace hayloft::offload {
namespace {

namespace fs = std::filesystem;

bool lists(std::string_view names, std::string_view name) {
  const std::vector<std::string_view> parts = split_list(names);
  return std::find(parts.begin(), parts.end(), name) != parts.end();
}

// The first number in a file; nothing for "max", for a negative number ("-1" is v1's "no quota") and for no file.
std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  std::int64_t value = 0;
  if (!(stream >> value) || value < 0) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

std::uint64_t field_of(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  std::string name;
  for (std::uint64_t value = 0; stream >> name >> value;) {
    if (name == key) return value;
  }
  return 0;
}

// The folders of a group and its ancestors under one mount. `root` is the part of the hierarchy that is mounted there
// ("/" unless a container sees only a branch); a group outside it is seen as the mount's root.
std::vector<fs::path> with_ancestors(const fs::path& mount, const std::string& root, const std::string& group) {
  std::string below = group;
  if (root != "/") below = group.starts_with(root + "/") ? group.substr(root.size()) : "/";
  std::vector<fs::path> folders{mount};
  fs::path folder = mount;
  for (const std::string_view part : split_list(below, '/')) {
    if (part.empty()) continue;
    if (part == "..") return {mount};  // outside this namespace's own root
    folders.push_back(folder /= part);
  }
  return folders;
}

}  // namespace

Cgroup::Cgroup(const fs::path& process) {
  std::string unified;                                      // this process' group under v2
  std::vector<std::pair<std::string, std::string>> legacy;  // (controllers, group) under v1
  std::ifstream groups(process / "cgroup");
  for (std::string line; std::getline(groups, line);) {  // id:controllers:group
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) {
      unified = line.substr(second + 1);
    } else {
      legacy.emplace_back(controllers, line.substr(second + 1));
    }
  }

  std::ifstream mounts(process / "mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // id parent device root mount options [optional...] - type source super-options
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string_view> left = split_list(std::string_view(line).substr(0, dash), ' ');
    const std::vector<std::string_view> right = split_list(std::string_view(line).substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 3) continue;
    if (right[0] == "cgroup2") {
      for (const fs::path& folder : with_ancestors(left[4], std::string(left[3]), unified)) {
        memory_.push_back({folder, true});
        cpu_.push_back({folder, true});
      }
    } else if (right[0] == "cgroup") {
      for (const auto& [controllers, group] : legacy) {
        const bool memory = lists(controllers, "memory") && lists(right[2], "memory");
        const bool cpu = lists(controllers, "cpu") && lists(right[2], "cpu");
        if (!memory && !cpu) continue;
        for (const fs::path& folder : with_ancestors(left[4], std::string(left[3]), group)) {
          if (memory) memory_.push_back({folder, false});
          if (cpu) cpu_.push_back({folder, false});
        }
      }
    }
  }
}

std::uint64_t Cgroup::memory_limit_bytes() const {
  std::uint64_t limit = unlimited;
  for (const Group& group : memory_) {
    limit = std::min(limit,
                     number_in(group.folder / (group.v2 ? "memory.max" : "memory.limit_in_bytes")).value_or(unlimited));
  }
  return limit;
}

std::uint64_t Cgroup::memory_available_bytes() const {
  std::uint64_t available = unlimited;
  for (const Group& group : memory_) {
    const auto limit = number_in(group.folder / (group.v2 ? "memory.max" : "memory.limit_in_bytes"));
    const auto usage = number_in(group.folder / (group.v2 ? "memory.current" : "memory.usage_in_bytes"));
    if (!limit || !usage) continue;
    const std::uint64_t idle =
        field_of(group.folder / "memory.stat", group.v2 ? "inactive_file" : "total_inactive_file");
    const std::uint64_t held = *usage - std::min(*usage, idle);
    available = std::min(available, *limit - std::min(*limit, held));
  }
  return available;
}

double Cgroup::processors() const {
  double quota = std::numeric_limits<double>::infinity();
  for (const Group& group : cpu_) {
    double time = 0;
    double period = 0;
    if (group.v2) {
      std::ifstream(group.folder / "cpu.max") >> time >> period;  // "max 100000" fails to parse and leaves 0
    } else {
      time = static_cast<double>(number_in(group.folder / "cpu.cfs_quota_us").value_or(0));
      period = static_cast<double>(number_in(group.folder / "cpu.cfs_period_us").value_or(0));
    }
    if (time > 0 && period > 0) quota = std::min(quota, time / period);
  }
  return quota;
}

}  // namespace hayloft::offload
