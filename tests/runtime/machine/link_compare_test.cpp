#include "runtime/machine/link_compare.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/machine/link_report.h"
#include "runtime/machine/profile.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Two hosts side by side, from the files that hayloft link writes.
namespace hayloft::runtime::plan {
namespace {

MachineProfile host(const std::string& name, double factor) {
  MachineProfile profile;
  profile.origin = {name, "A Processor", "2026-11-23T09:30:00Z", "0.4.0", 10, std::uint64_t{64} << 30, 0};
  profile.machine = "a machine";
  profile.device = "cpu";
  profile.threads = 2;
  profile.footprint_bytes = 1 << 30;
  profile.near_read = 20 * factor;
  profile.near_reads = {{0, 1, 12 * factor}, {0, 2, 20 * factor}};
  profile.weight_stream = 10;
  profile.matmul = 100;
  profile.layer_overhead_us = 12 / factor;
  profile.attention = {{64, 1, 8, 6, 2, 12 * factor, 30, 15, 5, 3, 4, 2, 40, 7, 0.5, 0.25}};
  profile.spreads = {{"near_reads", 0, 0, false, 9, 0.9, 0.95, 1.05, 1.1},
                     {"near_reads", 0, 0, false, 9, 0.99, 0.99, 1.01, 1.01},
                     {"weight_stream_GBps", 0, 0, false, 9, 0.9, 0.95, 1.05, 1.1},
                     {"dense_GBps", 64, 1, false, 3, 0.3, 0.5, 1.0, 1.2}};
  return profile;
}

class LinkCompareTest : public testing::Test {
 protected:
  std::string written(const std::string& name, const std::string& json) const {
    const std::string path = folder_ / name;
    std::ofstream(path) << json;
    return path;
  }
  MeasuredMachine read(const MachineProfile& profile) const {
    return read_measured(written(profile.origin.host + ".json", profile_json(profile)));
  }
  test::TemporaryFolder folder_;
};

TEST_F(LinkCompareTest, RatiosAreAboveOneWhereTheSecondIsFaster) {
  const std::string csv = compare_csv(read(host("attic", 1)), read(host("cellar", 2)));
  EXPECT_NE(csv.find("\n\"near read\",GB/s,20,40,2.0000,\n"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n\"near read, node 0, threads 2\",GB/s,20,40,2.0000,\n"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n\"layer overhead\",us,12,6,2.0000,\n"), std::string::npos) << "less time is faster" << csv;
  EXPECT_NE(csv.find("\n\"weight stream\",GB/s,10,10,1.0000,within the spread\n"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n\"dense, d=64, group 1\",GB/s,12,24,2.0000,unreliable\n"), std::string::npos) << csv;
}

TEST_F(LinkCompareTest, TheTableSaysWhoseTheyAreAndWhatOnlyOneHas) {
  MachineProfile fewer = host("cellar", 1);
  fewer.near_reads.pop_back();
  const std::string table = compare_table(read(host("attic", 1)), read(fewer));
  EXPECT_EQ(table.rfind("A: attic, A Processor, 2026-11-23T09:30:00Z\nB: cellar, A Processor, ", 0), 0u) << table;
  EXPECT_NE(table.find("\nonly in A: near read, node 0, threads 2\n"), std::string::npos) << table;
  EXPECT_EQ(table.find("only in B"), std::string::npos) << table;
}

TEST_F(LinkCompareTest, ReportsOfALinkAreComparedFigureByFigure) {
  const auto report_of = [](double rate) {
    gpu::LinkReport report;
    report.device = "A GPU";
    report.figures = {
        {"host_to_device_memcpy_ce", "ce", 4096, -1, 1 << 30, 0, "", rate, "GB/s", false, false, 7, rate, rate},
        {"host_device_latency_sm", "sm", 4096, -1, 1 << 30, 16, "random", 1e4 / rate, "ns", false, false, 7, 9, 9}};
    return report;
  };
  const std::string csv = compare_csv(read_measured(written("a.json", link_json(report_of(12.5)))),
                                      read_measured(written("b.json", link_json(report_of(25)))));
  EXPECT_NE(csv.find("\"host_to_device_memcpy_ce, ce, 4.0 KiB pages, 1.0 GiB\",GB/s,12.5,25,2.0000,\n"),
            std::string::npos)
      << csv;
  EXPECT_NE(csv.find(",ns,800,400,2.0000,"), std::string::npos) << csv;
}

TEST_F(LinkCompareTest, OtherFilesAreRefusedByName) {
  const std::string other = written("plan.json", "{\"schema\": \"hayloft.plan/1\"}");
  EXPECT_TRUE(test::refuses([&] { read_measured(other); }, {"plan.json", "neither a machine profile"}));
  EXPECT_TRUE(test::refuses([&] { read_measured(written("list.json", "[]")); }, {"list.json"}));
  EXPECT_TRUE(test::refuses([&] { read_measured(folder_ / "none.json"); }, {"none.json"}));
}

}  // namespace
}  // namespace hayloft::runtime::plan
