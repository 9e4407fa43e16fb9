#include <gtest/gtest.h>

#include <set>

#include "gpu/link.h"
#include "tests/cuda/backends.h"

// The link benchmark: what it covers, and that it checks what arrives. Figures themselves are a machine's own.
namespace hayloft::testing {
namespace {

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(LinkTest, MeasuresEveryKindOfTransferOverTheFootprint) {
  gpu::LinkOptions options;
  options.footprints = {std::uint64_t{4} << 20};  // just more than one block of keys, for a device made of fibers
  std::vector<std::size_t> known;                 // figures, when something was said
  const gpu::LinkReport report = gpu::measure_link(
      offload::Topology(), threads(), options,
      [&](const std::string&, const gpu::LinkReport& so_far) { known.push_back(so_far.figures.size()); });
  std::set<std::string> tests;
  for (const gpu::LinkFigure& figure : report.figures) {
    tests.insert(figure.test);
    EXPECT_GT(figure.value, 0) << figure.test;
    EXPECT_EQ(figure.footprint_bytes, options.footprints[0]);
  }
  EXPECT_EQ(tests, (std::set<std::string>{"column_stream_f16", "column_stream_int4", "column_stream_int8",
                                          "device_to_host_memcpy_ce", "device_to_host_memcpy_sm",
                                          "host_device_latency_sm", "host_to_device_both", "host_to_device_memcpy_ce",
                                          "host_to_device_memcpy_sm", "row_gather"}));
  ASSERT_GE(known.size(), 2u);
  EXPECT_EQ(known.front(), 0u);
  EXPECT_GT(known.back(), 0u) << "what is finished is handed on";
}

}  // namespace
}  // namespace hayloft::testing
