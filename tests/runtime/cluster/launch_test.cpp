#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "runtime/cluster/mpi/mpi_ranks.h"

// Ranks are told by their launchers how many they are.
namespace hayloft::runtime::cluster {
namespace {

class LaunchTest : public ::testing::Test {
 protected:
  static void set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"PMIX_RANK", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_LOCALID"}) ::unsetenv(name);
  }
};

TEST_F(LaunchTest, AStepOfOneTaskSharesItsMachineWithNone) {
  set({{"PMIX_RANK", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_NTASKS_PER_NODE", "8"}, {"SLURM_LOCALID", "0"}});
  ASSERT_TRUE(find_launch());
  EXPECT_EQ(find_launch()->on_this_machine, 1) << "though the job has eight";
}

TEST_F(LaunchTest, RanksOfAMachineAreAsManyAsTheLauncherSays) {
  set({{"PMIX_RANK", "9"}, {"SLURM_NTASKS", "16"}, {"SLURM_NTASKS_PER_NODE", "8"}});
  ASSERT_TRUE(find_launch());
  EXPECT_EQ(find_launch()->on_this_machine, 8);
  EXPECT_EQ(find_launch()->rank_on_this_machine, 1) << "where it does not say which";
}

}  // namespace
}  // namespace hayloft::runtime::cluster
