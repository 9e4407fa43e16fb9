#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "gpu/link.h"
#include "offload/host/pages.h"
#include "tests/gpu/cuda/backends.h"

// The link benchmark: what it covers and what it skips; tests/simt/link_gate_test.cpp has what
// it finds when a payload arrives changed. Figures themselves are a machine's own.
namespace hayloft::testing {
namespace {

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

// The subject of a figure, less what the machine decides.
using Kind = std::tuple<std::string, std::string, int, std::string>;  // test, engine, piece, order

std::set<Kind> every_kind() {
  std::set<Kind> kinds{{"host_to_device_memcpy_ce", "ce", 0, ""}, {"host_to_device_memcpy_sm", "sm", 0, ""},
                       {"host_to_device_both", "both", 0, ""},    {"device_to_host_memcpy_ce", "ce", 0, ""},
                       {"device_to_host_memcpy_sm", "sm", 0, ""}, {"host_device_latency_sm", "sm", 16, "random"},
                       {"both_ways_memcpy_ce", "ce", 0, ""}};
  for (const int row : {128, 256, 512, 1024}) {
    kinds.insert({"row_gather", "sm", row, "random"});
    kinds.insert({"row_gather", "sm", row, "ascending"});
  }
  for (const char* engine : {"sm", "ce", "both"}) {
    kinds.insert({"column_stream_f16", engine, 8192, ""});
    kinds.insert({"column_stream_int8", engine, 4096, ""});
    kinds.insert({"column_stream_int4", engine, 2048, ""});
  }
  return kinds;
}

TEST_F(LinkTest, MeasuresEveryKindOfTransferOverTheFootprintOnEveryKindOfPage) {
  gpu::LinkOptions options;
  options.footprints = {std::uint64_t{4} << 20};  // just more than one block of keys, for a device made of fibers
  std::vector<std::size_t> known;                 // figures, when something was said
  const gpu::LinkReport report = gpu::measure_link(
      offload::Topology(), threads(), options,
      [&](const std::string&, const gpu::LinkReport& so_far) { known.push_back(so_far.figures.size()); });
  std::map<std::tuple<std::uint64_t, bool, int>, std::set<Kind>> found;  // by page and node
  std::set<Kind> of_keys;
  std::set<std::string> launches;
  for (const gpu::LinkFigure& figure : report.figures) {
    if (figure.test == "device_memory_of_pinned") {
      EXPECT_EQ(figure.unit, "B/MiB");
      continue;
    }
    if (figure.test == "device_local_copy") {
      EXPECT_EQ(figure.unit, "GB/s");
      EXPECT_GT(figure.value, 0);
      continue;
    }
    if (figure.page_bytes == 0) {
      launches.insert(figure.test);
      EXPECT_GT(figure.value, 0) << figure.test;
      EXPECT_EQ(figure.unit, "ns");
      EXPECT_EQ(figure.runs, 7);
      continue;
    }
    const Kind kind{figure.test, figure.engine, figure.piece_bytes, figure.order};
    const bool first = found[{figure.page_bytes, figure.transparent, figure.node}].insert(kind).second;
    EXPECT_TRUE(first) << figure.test;
    if (figure.kv_pages) of_keys.insert(kind);
    EXPECT_GT(figure.value, 0) << figure.test;
    EXPECT_EQ(figure.runs, 7) << figure.test;
    EXPECT_LE(std::min(figure.slowest, figure.fastest), figure.value) << figure.test;
    EXPECT_GE(std::max(figure.slowest, figure.fastest), figure.value) << figure.test;
    EXPECT_EQ(figure.unit, figure.test == "host_device_latency_sm" ? "ns" : "GB/s");
    EXPECT_EQ(figure.footprint_bytes, options.footprints[0]);
  }
  for (const auto& [where, kinds] : found) EXPECT_EQ(kinds, every_kind()) << std::get<0>(where);
  EXPECT_EQ(launches, (std::set<std::string>{"launch_queued", "launch_live", "launch_and_wait"}));
  EXPECT_EQ(of_keys, every_kind()) << "the pages that an arena takes";
  std::set<std::pair<std::uint64_t, bool>> pages;
  for (const auto& [where, kinds] : found) pages.emplace(std::get<0>(where), std::get<1>(where));
  EXPECT_TRUE(pages.count({4096, false}));
  const offload::PageKind ordinary = offload::ordinary_pages();
  EXPECT_TRUE(pages.count({ordinary.bytes, ordinary.transparent})) << "where nothing is set aside";
  ASSERT_GE(known.size(), 2u);
  EXPECT_EQ(known.front(), 0u);
  EXPECT_GT(known.back(), 0u) << "what is finished is handed on";
}

TEST_F(LinkTest, MeasuresWhatItIsAskedForAlone) {
  gpu::LinkOptions options;
  options.footprints = {std::uint64_t{4} << 20};
  options.tests = {"both-ways", "device-to-device"};
  const gpu::LinkReport report = gpu::measure_link(offload::Topology(), threads(), options);
  for (const gpu::LinkFigure& figure : report.figures) {
    const bool asked = figure.test == "both_ways_memcpy_ce" || figure.test == "device_local_copy" ||
                       figure.test.rfind("device_to_device", 0) == 0;
    EXPECT_TRUE(asked || figure.test == "device_memory_of_pinned") << figure.test;
  }
}

TEST_F(LinkTest, TakesNoMemoryForLaunchesAlone) {
  gpu::LinkOptions options;
  options.tests = {"launches"};
  const gpu::LinkReport report = gpu::measure_link(offload::Topology(), threads(), options);
  ASSERT_EQ(report.figures.size(), 3u);
  for (const gpu::LinkFigure& figure : report.figures) EXPECT_TRUE(figure.test.starts_with("launch_")) << figure.test;
}

TEST_F(LinkTest, AFootprintAboveHalfOfTheFreeMemoryIsSkippedAndSaidSo) {
  gpu::LinkOptions options;
  options.footprints = {std::uint64_t{4} << 20, std::uint64_t{1} << 50};
  const gpu::LinkReport report = gpu::measure_link(offload::Topology(), threads(), options);
  for (const gpu::LinkFigure& figure : report.figures) {
    EXPECT_EQ(figure.footprint_bytes, figure.page_bytes > 0 ? options.footprints[0] : 0) << figure.test;
  }
  const auto said = [](const std::string& what) {
    return what.rfind("footprint 1.0 PiB: half of the free memory is ", 0) == 0;
  };
  EXPECT_EQ(std::count_if(report.skipped.begin(), report.skipped.end(), said), 1) << report.skipped.front();
}

}  // namespace
}  // namespace hayloft::testing
