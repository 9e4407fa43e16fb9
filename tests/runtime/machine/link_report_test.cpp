#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gpu/link_choice.h"
#include "runtime/machine/link_report.h"

// Tests what hayloft link prints of a measured link.
namespace hayloft::runtime::plan {
namespace {

gpu::LinkReport report() {
  gpu::LinkReport report;
  report.device = "A GPU, 16.0 GiB";
  report.driver = "13.0";
  report.runtime = "13.0";
  report.runtime_number = 13000;
  report.driver_version = "580.65.06";
  report.generation = 4;
  report.lanes = 16;
  const std::uint64_t GiB = std::uint64_t{1} << 30;
  const bool yes = true, no = false;
  report.figures = {
      {"host_to_device_memcpy_ce", "ce", 4096, -1, GiB, 0, "", 25.5, "GB/s", no, no},
      {"host_to_device_memcpy_ce", "ce", 2 << 20, -1, GiB, 0, "", 24.75, "GB/s", yes, yes},
      {"host_to_device_memcpy_ce", "ce", 2 << 20, -1, 4 * GiB, 0, "", 24.5, "GB/s", yes, yes},
      {"host_to_device_memcpy_sm", "sm", 2 << 20, -1, 4 * GiB, 0, "", 23, "GB/s", yes, yes},
      {"device_to_host_memcpy_ce", "ce", 2 << 20, -1, 4 * GiB, 0, "", 26, "GB/s", yes, yes},
      {"column_stream_f16", "sm", 2 << 20, -1, 4 * GiB, 8192, "", 22, "GB/s", yes, yes},
      {"column_stream_f16", "ce", 2 << 20, -1, 4 * GiB, 8192, "", 7, "GB/s", yes, yes},
      {"column_stream_f16", "sm", 4096, -1, 4 * GiB, 8192, "", 97, "GB/s", no, no},
      {"column_stream_int4", "both", 2 << 20, -1, 4 * GiB, 2048, "", 19, "GB/s", yes, yes},
      {"row_gather", "sm", 2 << 20, -1, 4 * GiB, 512, "random", 18, "GB/s", yes, yes},
      {"host_to_device_memcpy_ce", "ce", 1 << 30, -1, 4 * GiB, 0, "", 99, "GB/s", no, no},
      {"host_device_latency_sm", "sm", 4096, -1, 4 * GiB, 16, "random", 1250, "ns", no, no},
  };
  report.skipped = {"pages of 1.0 GiB: the system keeps none free"};
  return report;
}

TEST(LinkReport, TheProfileTakesTheBestRatesAtTheLargestFootprintOnThePagesOfKeysAndValues) {
  MachineProfile profile;
  note_link(report(), profile);
  EXPECT_EQ(profile.link_to_device, 24.5);
  EXPECT_EQ(profile.link_to_host, 26);
  EXPECT_EQ(profile.link_columns_f16.sm, 22);
  EXPECT_EQ(profile.link_columns_f16.copy, 7);
  EXPECT_EQ(profile.link_columns_int4.both, 19);
  EXPECT_FALSE(profile.link_columns_int8.sm);
}

TEST(LinkReport, ALongerReportTakesThePlaceOfAShorterOne) {
  MachineProfile profile;
  gpu::LinkReport shorter = report();
  shorter.figures.resize(2);  // 1 GiB, faster than 4
  note_link(shorter, profile);
  EXPECT_EQ(profile.link_to_device, 24.75);
  note_link(report(), profile);
  EXPECT_EQ(profile.link_to_device, 24.5);
}

TEST(LinkReport, ColumnsComeTheFastestWayButByTheMultiprocessorsWhenItIsClose) {
  MachineProfile profile;
  EXPECT_EQ(profile.best_link(), gpu::Link::sm) << "nothing was measured";
  profile.link_columns_f16.sm = 35;
  profile.link_columns_f16.copy = 38;
  EXPECT_EQ(profile.best_link().f16, gpu::Link::sm);
  profile.link_columns_f16.copy = 50;
  EXPECT_EQ(profile.best_link().f16, gpu::Link::copy);
  profile.link_columns_f16.both = 56;
  EXPECT_EQ(profile.best_link().f16, gpu::Link::both);
}

TEST(LinkReport, TheBestLinkIsThatOfTheReport) {
  const gpu::LinkChoice best = best_link(report());
  EXPECT_EQ(best.f16, gpu::Link::sm);
  EXPECT_EQ(best.int8, gpu::Link::sm) << "not measured";
  EXPECT_EQ(best.int4, gpu::Link::both);
}

TEST(LinkReport, EveryFormatOfColumnsComesItsOwnWay) {
  MachineProfile profile;
  profile.link_columns_f16 = {20, 50, 50};
  profile.link_columns_int8 = {20, 22, 30};
  profile.link_columns_int4 = {20, 12, 18};
  const gpu::LinkChoice best = profile.best_link();
  EXPECT_EQ(best.of(offload::ColumnFormat::f16), gpu::Link::copy);
  EXPECT_EQ(best.of(offload::ColumnFormat::int8), gpu::Link::both);
  EXPECT_EQ(best.of(offload::ColumnFormat::int4), gpu::Link::sm) << "bound by the number of copies";
}

TEST(LinkReport, SharedTestcasesHaveTheShapeOfNvbandwidth) {
  const nlohmann::json json = nlohmann::json::parse(link_json(report()));
  EXPECT_EQ(json["link"]["figures"].size(), 12u);
  EXPECT_EQ(json["nvbandwidth"]["CUDA Runtime Version"], 13000);
  EXPECT_EQ(json["nvbandwidth"]["Driver Version"], "580.65.06");
  for (const char* field : {"version", "git_version"}) EXPECT_TRUE(json["nvbandwidth"][field].is_string()) << field;
  const nlohmann::json& testcases = json["nvbandwidth"]["testcases"];
  EXPECT_EQ(testcases[0]["name"], "host_to_device_memcpy_ce");
  EXPECT_EQ(testcases[0]["status"], "Passed");
  EXPECT_EQ(testcases[0]["bandwidth_matrix"][0][0], "25.50");
  EXPECT_EQ(testcases[3]["name"], "device_to_host_memcpy_sm");
  EXPECT_EQ(testcases[3]["status"], "Waived") << "nobody measured it";
  EXPECT_EQ(testcases[4]["sum"], 1250);
}

TEST(LinkReport, TheDriverSaysItsOwnVersionOrNothingIsWritten) {
  EXPECT_EQ(
      gpu::driver_version_in("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 2023\nGCC 12.2"),
      "535.104.05");
  EXPECT_EQ(gpu::driver_version_in("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"),
            "580.65.06");
  EXPECT_EQ(gpu::driver_version_in(""), "");
  gpu::LinkReport silent = report();
  silent.driver_version = "";
  EXPECT_FALSE(nlohmann::json::parse(link_json(silent))["nvbandwidth"].contains("Driver Version"));
}

TEST(LinkReport, TablesNameEveryFigureAndWhatWasSkipped) {
  const std::string table = link_table(report());
  EXPECT_NE(table.find("PCIe 4 x16, 31.5 GB/s each way"), std::string::npos) << table;
  EXPECT_NE(table.find("| row_gather | sm | 2.0 MiB transparent |  | 4.0 GiB | 512 B | random | 18 |  |  | GB/s |"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("skipped: pages of 1.0 GiB"), std::string::npos) << table;
  EXPECT_NE(table.find("driver 580.65.06 for CUDA 13.0"), std::string::npos) << table;
  EXPECT_NE(table.find("; keys and values on 2.0 MiB transparent pages"), std::string::npos) << table;
  EXPECT_EQ(table.find('*'), std::string::npos) << "nothing is known of its turns";
  const std::string csv = link_csv(report());
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 13);
}

TEST(LinkReport, SaysHowFarTheTurnsOfAFigureLieApart) {
  gpu::LinkReport timed = report();
  timed.node = 1;
  timed.figures.resize(2);
  timed.figures[0].runs = 7;
  timed.figures[0].slowest = 25;
  timed.figures[0].fastest = 26;
  timed.figures[1].runs = 7;
  timed.figures[1].slowest = 2.77;
  timed.figures[1].fastest = 25;
  EXPECT_FALSE(timed.figures[0].unreliable());
  EXPECT_TRUE(timed.figures[1].unreliable());
  const std::string table = link_table(timed);
  EXPECT_NE(table.find("| 25.5 | 25 | 26 | GB/s |"), std::string::npos) << table;
  EXPECT_NE(table.find("| 24.75* | 2.77 | 25 | GB/s |"), std::string::npos) << table;
  EXPECT_NE(table.find("NUMA node 1"), std::string::npos) << table;
  const nlohmann::json json = nlohmann::json::parse(link_json(timed));
  EXPECT_EQ(json["link"]["figures"][1]["slowest"], 2.77);
  EXPECT_EQ(json["nvbandwidth"]["testcases"][0]["min"], 25);
  EXPECT_EQ(json["nvbandwidth"]["testcases"][0]["max"], 26);
}

}  // namespace
}  // namespace hayloft::runtime::plan
