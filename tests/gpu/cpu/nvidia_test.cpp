#include "gpu/nvidia.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/temporary_folder.h"

// What the system shows of an NVIDIA GPU, in folders as Linux lays them out.
namespace hayloft::gpu {
namespace {

namespace fs = std::filesystem;

class NvidiaTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    root_.write(path, text);
  }
  std::string shown() const { return nvidia_gpu(root_.path()); }
  std::vector<std::string> cautions() const { return link_cautions(root_.path()); }

  const test::TemporaryFolder root_;
};

TEST_F(NvidiaTest, ACardIsSeenByItsNodeOrItsDriver) {
  EXPECT_EQ(shown(), "");
  write("dev/nvidiactl", "");
  write("dev/nvidia-uvm", "");
  EXPECT_EQ(shown(), "");
  write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n");
  EXPECT_EQ(shown(), "/proc/driver/nvidia, driver 580.65.06");
  write("dev/nvidia1", "");
  EXPECT_EQ(shown(), "/dev/nvidia1, driver 580.65.06");
}

TEST_F(NvidiaTest, UnderWslACardIsSeenByItsDriversLibrary) {
  write("dev/dxg", "");  // of any vendor's card
  EXPECT_EQ(shown(), "");
  write("usr/lib/wsl/lib/libcuda.so.1", "");
  EXPECT_EQ(shown(), "/usr/lib/wsl/lib/libcuda.so.1");
}

TEST_F(NvidiaTest, TheRootIsThatOfTheEnvironment) {
  ::setenv("HAYLOFT_SYSTEM_ROOT", root_.path().c_str(), 1);
  EXPECT_EQ(system_root(), root_.path());
  write("dev/nvidia0", "");
  EXPECT_EQ(nvidia_gpu(), "/dev/nvidia0");
  ::unsetenv("HAYLOFT_SYSTEM_ROOT");
  EXPECT_EQ(system_root(), "/");
}

TEST_F(NvidiaTest, AnIommuThatTranslatesForTheCardIsSaidWithItsRemedy) {
  EXPECT_TRUE(cautions().empty());
  write("sys/kernel/iommu_groups/3/type", "DMA-FQ\n");  // of a network card
  write("sys/kernel/iommu_groups/3/devices/0000:05:00.0/vendor", "0x8086\n");
  write("sys/kernel/iommu_groups/14/devices/0000:01:00.0/vendor", "0x10de\n");
  write("sys/kernel/iommu_groups/14/type", "identity\n");
  EXPECT_TRUE(cautions().empty());
  write("sys/kernel/iommu_groups/14/type", "DMA\n");
  ASSERT_EQ(cautions().size(), 1u);
  EXPECT_NE(cautions()[0].find("translates every address"), std::string::npos) << cautions()[0];
  EXPECT_NE(cautions()[0].find("iommu=pt"), std::string::npos) << cautions()[0];
  fs::remove(root_ / "sys/kernel/iommu_groups/14/type");
  ASSERT_EQ(cautions().size(), 1u);
  EXPECT_NE(cautions()[0].find("does not say whether"), std::string::npos) << cautions()[0];
}

TEST_F(NvidiaTest, WslIsSaidToMoveDeviceMemory) {
  write("proc/version", "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)\n");
  EXPECT_TRUE(cautions().empty());
  write("proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@941d701f84f1)\n");
  ASSERT_EQ(cautions().size(), 1u);
  EXPECT_NE(cautions()[0].find("--gpu-memory"), std::string::npos) << cautions()[0];
}

}  // namespace
}  // namespace hayloft::gpu
