#include "offload/host/topology.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "offload/host/cgroup.h"

namespace hayloft::offload {
namespace {

namespace fs = std::filesystem;

TEST(Topology, DescribesAMachineWithMemoryAndProcessors) {
  const Topology topology;
  EXPECT_GE(topology.processors(), 1);
  EXPECT_GT(topology.memory_bytes(), std::uint64_t{64} << 20);
  EXPECT_GT(topology.available_bytes(), 0u);
  ASSERT_FALSE(topology.nodes().empty());
  const std::string line = topology.describe();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_NE(line.find("NUMA node"), std::string::npos) << line;
  EXPECT_NE(line.find("iB memory"), std::string::npos) << line;
}

TEST(Topology, NodesHoldEachProcessorOfThisProcessOnce) {
  std::set<int> processors;
  std::size_t listed = 0;
  const Topology topology;
  for (const NumaNode& node : topology.nodes()) {
    processors.insert(node.processors.begin(), node.processors.end());
    listed += node.processors.size();
  }
  EXPECT_EQ(processors.size(), listed);
  EXPECT_GE(static_cast<int>(listed), usable_processors());
}

TEST(Topology, HugePagePoolsComeLargestFirstAndNotEmpty) {
  std::uint64_t before = UINT64_MAX;
  const Topology topology;
  for (const PagePool& pool : topology.huge_pages()) {
    EXPECT_LT(pool.page_bytes, before);
    EXPECT_GT(pool.free_pages, 0u);
    before = pool.page_bytes;
  }
}

TEST(Topology, AnAffinityMaskBoundsTheProcessors) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_processors(), 1);
  const Topology topology;
  EXPECT_EQ(topology.processors(), 1);
  std::size_t listed = 0;
  for (const NumaNode& node : topology.nodes()) listed += node.processors.size();
  EXPECT_EQ(listed, 1u);
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

// A made-up /proc/self and the groups it points to.
class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() : root_(fs::path(::testing::TempDir()) / fmt::format("hayloft-cgroup-{}", getpid())) {
    fs::remove_all(root_);
    fs::create_directories(root_ / "proc");
  }
  ~CgroupTest() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void mount_v2(const std::string& root) {
    write("proc/mountinfo", fmt::format("23 22 0:21 / /proc rw - proc proc rw\n"
                                        "31 23 0:27 {} {} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n",
                                        root, (root_ / "v2").string()));
  }
  Cgroup cgroup() const { return Cgroup(root_ / "proc"); }

  fs::path root_;
};

TEST_F(CgroupTest, WithoutGroupsThereIsNoLimit) {
  const Cgroup none(root_ / "nowhere");
  EXPECT_EQ(none.memory_limit_bytes(), Cgroup::unlimited);
  EXPECT_EQ(none.memory_available_bytes(), Cgroup::unlimited);
  EXPECT_TRUE(std::isinf(none.processors()));
}

TEST_F(CgroupTest, TheTightestLimitOnTheWayUpCounts) {
  mount_v2("/");
  write("proc/cgroup", "0::/slice/job\n");
  write("v2/slice/job/memory.max", "max\n");
  write("v2/slice/job/cpu.max", "max 100000\n");
  write("v2/slice/memory.max", "4000000000\n");
  write("v2/slice/cpu.max", "350000 100000\n");
  write("v2/memory.max", "9000000000\n");
  EXPECT_EQ(cgroup().memory_limit_bytes(), 4'000'000'000u);
  EXPECT_DOUBLE_EQ(cgroup().processors(), 3.5);
}

TEST_F(CgroupTest, IdleFilePagesCountAsAvailable) {
  mount_v2("/");
  write("proc/cgroup", "0::/job\n");
  write("v2/job/memory.max", "1000\n");
  write("v2/job/memory.current", "900\n");
  write("v2/job/memory.stat", "anon 500\nactive_file 150\ninactive_file 250\n");
  EXPECT_EQ(cgroup().memory_available_bytes(), 350u);
  write("v2/job/memory.current", "1400\n");  // above the limit, as after lowering it
  EXPECT_EQ(cgroup().memory_available_bytes(), 0u);
}

TEST_F(CgroupTest, LimitsAreReadAnewAtEachCall) {
  mount_v2("/");
  write("proc/cgroup", "0::/\n");
  write("v2/memory.max", "1000\n");
  const Cgroup group = cgroup();
  EXPECT_EQ(group.memory_limit_bytes(), 1000u);
  write("v2/memory.max", "2000\n");
  EXPECT_EQ(group.memory_limit_bytes(), 2000u);
}

TEST_F(CgroupTest, AContainerSeesItsOwnBranchAsTheRootOfTheMount) {
  mount_v2("/docker/abc");
  write("proc/cgroup", "0::/docker/abc/inner\n");
  write("v2/memory.max", "5000\n");
  write("v2/inner/memory.max", "7000\n");
  EXPECT_EQ(cgroup().memory_limit_bytes(), 5000u);
  write("v2/inner/memory.max", "3000\n");
  EXPECT_EQ(cgroup().memory_limit_bytes(), 3000u);
}

TEST_F(CgroupTest, AGroupOutsideTheMountIsReadAtTheMountsRoot) {
  mount_v2("/docker/abc");
  write("v2/memory.max", "5000\n");
  write("proc/cgroup", "0::/elsewhere\n");
  EXPECT_EQ(cgroup().memory_limit_bytes(), 5000u);
  write("proc/cgroup", "0::/../sibling\n");
  EXPECT_EQ(cgroup().memory_limit_bytes(), 5000u);
}

TEST_F(CgroupTest, TheFirstVersionsControllersAreReadFromTheirOwnMounts) {
  write("proc/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n");
  write("proc/mountinfo", fmt::format("32 31 0:28 / {0}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                                      "33 31 0:29 / {0}/memory rw - cgroup cgroup rw,memory\n"
                                      "34 31 0:30 / {0}/v2 rw - cgroup2 cgroup2 rw\n",
                                      root_.string()));
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  write("cpu/job/cpu.cfs_quota_us", "150000\n");
  write("cpu/job/cpu.cfs_period_us", "100000\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("memory/job/memory.limit_in_bytes", "1000\n");
  write("memory/job/memory.usage_in_bytes", "800\n");
  write("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
  EXPECT_EQ(cgroup().memory_limit_bytes(), 1000u);
  EXPECT_EQ(cgroup().memory_available_bytes(), 300u);
  EXPECT_DOUBLE_EQ(cgroup().processors(), 1.5);
}

}  // namespace
}  // namespace hayloft::offload
