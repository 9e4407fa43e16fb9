#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/simt/program/gpu_check_fixture.h"

// Tests what scripts/gpu-check records of the machine, and takes of it.
namespace hayloft::test {
namespace {

class GpuCheckMachine : public GpuCheckScript {
 protected:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    folder_.write(name, text);
  }
};

const std::string card =
    " GiB of the memory can be taken\ncuda  A card at 0000:3B:00.0, 24.0 GiB, of which 23.5 GiB may be used";

TEST_F(GpuCheckMachine, TheReportSaysHowTheDeviceIsAttached) {
  program_that_lists("cpu   x; 3.4" + card);
  const std::string device = "root/sys/bus/pci/devices/0000:3b:00.0/";
  write(device + "resource",
        "0x00000000f6000000 0x00000000f6ffffff 0x0000000000040200\n"
        "0x0000038000000000 0x00000383ffffffff 0x000000000014220c\n"
        "0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
  write(device + "current_link_speed", "16.0 GT/s PCIe\n");
  write(device + "current_link_width", "8\n");
  write(device + "max_link_speed", "16.0 GT/s PCIe\n");
  write(device + "max_link_width", "16\n");
  write("root/proc/cmdline", "root=/dev/sda quiet intel_iommu=on iommu=pt splash\n");
  write("root/sys/kernel/iommu_groups/0/type", "");
  write("root/sys/kernel/iommu_groups/1/type", "");
  run("tests", "HAYLOFT_CHECK_ROOT=" + (folder_ / "root").string());
  const nlohmann::json bus = report()["bus"];
  EXPECT_EQ(bus["address"], "0000:3B:00.0");
  EXPECT_EQ(bus["bar_bytes"], nlohmann::json::parse("[16777216, 17179869184]"));
  EXPECT_EQ(bus["link_speed"], "16.0 GT/s PCIe");
  EXPECT_EQ(bus["link_width"], "8");
  EXPECT_EQ(bus["max_link_width"], "16");
  EXPECT_EQ(bus["iommu"], "intel_iommu=on iommu=pt");
  EXPECT_EQ(bus["iommu_groups"], 2);
  EXPECT_NE(
      summary().find("link at 16.0 GT/s PCIe x8 (at most 16.0 GT/s PCIe x16), largest BAR 16384 MiB, iommu options "
                     "'intel_iommu=on iommu=pt', 2 IOMMU groups"),
      std::string::npos)
      << summary();
}

TEST_F(GpuCheckMachine, WhereTheSystemDoesNotTellTheReportSaysNothing) {
  program_that_lists("cpu   x; 3.4" + card);
  run("tests", "HAYLOFT_CHECK_ROOT=" + (folder_ / "none").string());
  const nlohmann::json bus = report()["bus"];
  EXPECT_EQ(bus["link_speed"], "");
  EXPECT_TRUE(bus["bar_bytes"].empty());
  EXPECT_EQ(bus["iommu_groups"], 0);
}

TEST_F(GpuCheckMachine, OnceALongContextIsMeasuredWithAllItsLayersWhereTheMachineHasTheMemory) {
  const auto whole = [&](const std::string& memory) {
    fs::remove(folder_ / "calls");
    program_that_lists("cpu   x; " + memory + card);
    run("bench", "HAYLOFT_CHECK_BENCH=1M");
    const std::vector<std::string> calls = lines(folder_ / "calls");
    return std::count_if(calls.begin(), calls.end(), [](const std::string& call) {
      return call.find("--host-memory 146GiB") != std::string::npos && call.find("--columns int4") != std::string::npos;
    });
  };
  EXPECT_EQ(whole("200.0"), 1);
  EXPECT_EQ(whole("100.0"), 0);
  EXPECT_NE(
      report()["notes"].get<std::string>().find("All layers of 1M tokens take 146 GiB with int4 columns, of which this "
                                                "machine can give 80 GiB"),
      std::string::npos)
      << report()["notes"];
}

}  // namespace
}  // namespace hayloft::test
