#include "offload/text/units.h"

#include <gtest/gtest.h>

namespace hayloft {
namespace {

TEST(Units, DurationsAreInTheUnitThatPeopleWouldTake) {
  EXPECT_EQ(format_duration(0.00035), "350 us");
  EXPECT_EQ(format_duration(0.0042), "4.2 ms");
  EXPECT_EQ(format_duration(0.9999), "1 s");
  EXPECT_EQ(format_duration(12.5), "12.5 s");
  EXPECT_EQ(format_duration(440), "7.33 min");
  EXPECT_EQ(format_duration(236292.12), "65.6 h");
  EXPECT_EQ(format_duration(86400.0 * 40), "40 days");
  EXPECT_EQ(format_duration(0), "0 us");
}

TEST(Units, BytesMayBeMoreThan64BitsCount) {
  EXPECT_EQ(format_large_bytes(0), "0 B");
  EXPECT_EQ(format_large_bytes(1.5 * 1024 * 1024), "1.5 MiB");
  EXPECT_EQ(format_large_bytes(0x1p62), "4.0 EiB");
  EXPECT_EQ(format_large_bytes(52.7 * 0x1p60), "52.7 EiB");
}

TEST(Units, OperationsAreCountedInThousands) {
  EXPECT_EQ(format_flops(812e6), "812 MFLOP");
  EXPECT_EQ(format_flops(1.25e12), "1.25 TFLOP");
  EXPECT_EQ(format_flops(999.96e12), "1 PFLOP");
  EXPECT_EQ(format_flops(4e17), "400 PFLOP");
}

}  // namespace
}  // namespace hayloft
