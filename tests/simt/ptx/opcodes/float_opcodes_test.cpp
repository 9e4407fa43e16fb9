#include <cmath>
#include <limits>

#include "tests/simt/ptx/opcodes/approximation.h"
#include "tests/simt/ptx/opcodes/opcode_table.h"
#include "tests/simt/ptx/opcodes/special_values.h"

// PTX ISA, "Floating Point Instructions" and "cvt" between floats.
namespace hayloft::simt::ptx {
namespace {

constexpr float largest = std::numeric_limits<float>::max();
constexpr float least = std::numeric_limits<float>::denorm_min();
constexpr float eps = std::numeric_limits<float>::epsilon();
constexpr double inf64 = std::numeric_limits<double>::infinity();
constexpr double least64 = std::numeric_limits<double>::denorm_min();
constexpr std::uint64_t nan64 = 0x7ff8000000000000;

TEST(PtxFloatOpcodes, SingleArithmeticRoundsToNearestKeepsDenormalsAndMakesOneNaN) {
  std::vector<OpcodeCase> table{
      {"fma.rn.f32", {bits(1 + eps), bits(1 + eps), bits(-1.0f - 2 * eps)}, {bits(eps * eps)}},
      {"fma.rn.f32", {bits(least), bits(0.5f), bits(0.0f)}, {bits(0.0f)}},
      {"fma.rn.f32", {bits(inf), bits(0.0f), bits(1.0f)}, {nan32}},
      {"fma.rn.f32", {bits(2.0f), bits(3.0f), payload32}, {nan32}},
      {"fma.rm.f32", {bits(1.0f), bits(1.0f), bits(eps / 4)}, {bits(1.0f)}},
      {"fma.rm.f32", {bits(1.0f), bits(-1.0f), bits(-eps / 4)}, {bits(-1 - eps)}},
      {"fma.rm.f32", {bits(1.0f), bits(1.0f), bits(-1.0f)}, {minus0}},
      {"fma.rm.f32", {bits(largest), bits(2.0f), bits(0.0f)}, {bits(largest)}},
      {"add.rz.f32", {bits(1.0f), bits(eps * 3 / 4)}, {bits(1.0f)}},
      {"add.rz.f32", {bits(-1.0f), bits(-eps * 3 / 4)}, {bits(-1.0f)}},
      {"add.rz.f32", {bits(largest), bits(largest)}, {bits(largest)}},
      {"add.rz.f32", {bits(inf), bits(-inf)}, {nan32}},
      {"div.rn.f32", {bits(1.0f), bits(3.0f)}, {0x3eaaaaab}},
      {"div.rn.f32", {bits(1.0f), minus0}, {bits(-inf)}},
      {"div.rn.f32", {bits(0.0f), bits(0.0f)}, {nan32}},
      {"div.rn.f32", {bits(least), bits(2.0f)}, {0}},
      {"rcp.rn.f32", {bits(3.0f)}, {0x3eaaaaab}},
      {"rcp.rn.f32", {minus0}, {bits(-inf)}},
      {"sqrt.rn.f32", {bits(2.0f)}, {0x3fb504f3}},
      {"sqrt.rn.f32", {minus0}, {minus0}},
      {"sqrt.rn.f32", {bits(-1.0f)}, {nan32}},
      {"sqrt.rn.f32", {bits(least)}, {0x1a3504f3}},
  };
  for (const std::string rounding : {".", ".rn."}) {
    table.push_back({"add" + rounding + "f32", {bits(1.0f), bits(eps / 2)}, {bits(1.0f)}});
    table.push_back({"add" + rounding + "f32", {bits(1 + eps), bits(eps / 2)}, {bits(1 + 2 * eps)}});  // half to even
    table.push_back({"add" + rounding + "f32", {bits(least), bits(least)}, {2}});
    table.push_back({"add" + rounding + "f32", {bits(inf), bits(-inf)}, {nan32}});
    table.push_back({"add" + rounding + "f32", {payload32, bits(1.0f)}, {nan32}});
    table.push_back({"sub" + rounding + "f32", {bits(1.0f), bits(1.0f)}, {0}});
    table.push_back({"sub" + rounding + "f32", {minus0, bits(0.0f)}, {minus0}});
    table.push_back({"mul" + rounding + "f32", {bits(largest), bits(2.0f)}, {bits(inf)}});
    table.push_back({"mul" + rounding + "f32", {bits(std::numeric_limits<float>::min()), bits(0.5f)}, {0x00400000}});
    table.push_back({"mul" + rounding + "f32", {bits(inf), bits(0.0f)}, {nan32}});
  }
  check_table(table, {"fma.rn.f32", "fma.rm", "add.rz", "div.rn.f32", "rcp.rn.f32", "sqrt.rn.f32", "add.f32",
                      "add.rn.f32", "sub.f32", "sub.rn.f32", "mul.f32", "mul.rn.f32"});
}

TEST(PtxFloatOpcodes, DoubleArithmetic) {
  constexpr double eps64 = std::numeric_limits<double>::epsilon();
  std::vector<OpcodeCase> table{
      {"fma.rn.f64", {bits(1 + eps64), bits(1 + eps64), bits(-1.0 - 2 * eps64)}, {bits(eps64 * eps64)}},
      {"div.rn.f64", {bits(1.0), bits(3.0)}, {0x3fd5555555555555}},
      {"div.rn.f64", {bits(-1.0), bits(0.0)}, {bits(-inf64)}},
      {"rcp.rn.f64", {bits(3.0)}, {0x3fd5555555555555}},
      {"sqrt.rn.f64", {bits(2.0)}, {0x3ff6a09e667f3bcd}},
      {"rcp.approx.ftz.f64", {bits(3.0)}, {0x3fd5555500000000}},
      {"rcp.approx.ftz.f64", {bits(0.0)}, {bits(inf64)}},
      {"rcp.approx.ftz.f64", {bits(-least64)}, {bits(-inf64)}},
      {"rcp.approx.ftz.f64", {bits(-inf64)}, {bits(-0.0)}},
  };
  for (const std::string rounding : {".", ".rn."}) {
    table.push_back({"add" + rounding + "f64", {bits(1.0), bits(eps64 / 2)}, {bits(1.0)}});
    table.push_back({"add" + rounding + "f64", {bits(least64), bits(least64)}, {2}});
    table.push_back({"sub" + rounding + "f64", {bits(3.0), bits(5.0)}, {bits(-2.0)}});
    table.push_back({"mul" + rounding + "f64", {bits(1e300), bits(1e300)}, {bits(inf64)}});
  }
  check_table(table, {"fma.rn.f64", "div.rn.f64", "rcp.rn.f64", "sqrt.rn.f64", "rcp.approx.ftz.f64", "add.f64",
                      "add.rn.f64", "sub.f64", "sub.rn.f64", "mul.f64", "mul.rn.f64"});
}

TEST(PtxFloatOpcodes, TheSignIsABitOfItsOwn) {
  check_table(
      {
          {"neg.f32", {bits(1.0f)}, {bits(-1.0f)}},
          {"neg.f32", {0}, {minus0}},
          {"neg.f32", {0x7fc12345}, {payload32}},
          {"neg.f64", {bits(-0.0)}, {0}},
          {"neg.f64", {bits(2.5)}, {bits(-2.5)}},
          {"abs.f32", {minus0}, {0}},
          {"abs.f32", {bits(-inf)}, {bits(inf)}},
          {"abs.f32", {bits(-least)}, {bits(least)}},
          {"copysign.f32",
           {bits(-2.0f), bits(3.0f)},
           {bits(-3.0f)}},  // the sign of the first, the number of the second
          {"copysign.f32", {0, bits(-inf)}, {bits(inf)}},
      },
      {"neg.f", "abs", "copysign"});
}

TEST(PtxFloatOpcodes, ANumberBeatsNaNAndMinusZeroIsLess) {
  check_table(
      {
          {"min.f32", {payload32, bits(1.0f)}, {bits(1.0f)}},
          {"min.f32", {bits(1.0f), payload32}, {bits(1.0f)}},
          {"min.f32", {payload32, payload32}, {nan32}},
          {"min.f32", {0, minus0}, {minus0}},
          {"min.f32", {minus0, 0}, {minus0}},
          {"min.f32", {bits(-inf), bits(-largest)}, {bits(-inf)}},
          {"max.f32", {payload32, bits(-1.0f)}, {bits(-1.0f)}},
          {"max.f32", {payload32, payload32}, {nan32}},
          {"max.f32", {0, minus0}, {0}},
          {"max.f32", {minus0, 0}, {0}},
          {"max.f32", {bits(least), 0}, {bits(least)}},
          {"min.f64", {nan64, bits(1.0)}, {bits(1.0)}},
          {"min.f64", {bits(0.0), bits(-0.0)}, {bits(-0.0)}},
          {"max.f64", {bits(1.0), nan64}, {bits(1.0)}},
          {"max.f64", {bits(-0.0), bits(0.0)}, {0}},
      },
      {"min.f", "max.f"});
}

TEST(PtxFloatOpcodes, PowersOfTwoFlushDenormalsWhereTheOpcodeSaysSo) {
  check_table(
      {
          {"ex2.approx.f32", {bits(10.0f)}, {bits(1024.0f)}},
          {"ex2.approx.f32", {bits(-0.0f)}, {bits(1.0f)}},
          {"ex2.approx.f32", {bits(least)}, {bits(1.0f)}},
          {"ex2.approx.f32", {bits(-inf)}, {0}},
          {"ex2.approx.f32", {bits(inf)}, {bits(inf)}},
          {"ex2.approx.f32", {bits(200.0f)}, {bits(inf)}},
          {"ex2.approx.f32", {bits(-149.0f)}, {1}},
          {"ex2.approx.f32", {payload32}, {nan32}},
          {"ex2.approx.ftz.f32", {bits(-126.0f)}, {0x00800000}},
          {"ex2.approx.ftz.f32", {bits(-127.0f)}, {0}},
          {"ex2.approx.ftz.f32", {bits(-least)}, {bits(1.0f)}},
          {"ex2.approx.ftz.f32", {payload32}, {nan32}},
      },
      {"ex2"});
}

TEST(PtxFloatOpcodes, ApproximateReciprocalsFlushDenormals) {
  check_table(
      {
          {"rcp.approx.ftz.f32", {bits(4.0f)}, {bits(0.25f)}},
          {"rcp.approx.ftz.f32", {bits(least)}, {bits(inf)}},
          {"rcp.approx.ftz.f32", {bits(-least)}, {bits(-inf)}},
          {"rcp.approx.ftz.f32", {bits(0x1p127f)}, {0}},
          {"rcp.approx.ftz.f32", {bits(-inf)}, {bits(-0.0f)}},
          {"rcp.approx.ftz.f32", {payload32}, {nan32}},
      },
      {"rcp.approx.ftz.f32"});
}

TEST(PtxFloatOpcodes, ApproximationsAreOffByNoMoreThanWasAskedFor) {
  unsigned furthest = 0;
  for (const unsigned ulp : {0u, 2u}) {
    set_approximation_ulp(ulp);
    OpcodeBench bench("ex2.approx.f32");
    for (float x = -20; x < 20; x += 0.37f) {
      const std::uint64_t got = bench.run({bits(x)}, 1)[0];
      const std::uint64_t exact = bits(std::exp2(x));
      const auto off = static_cast<unsigned>(got > exact ? got - exact : exact - got);
      EXPECT_LE(off, ulp);
      furthest = std::max(furthest, off);
      EXPECT_EQ(bench.run({bits(x)}, 1)[0], got);
    }
    EXPECT_EQ(bench.run({0}, 1)[0], bits(1.0f));
    EXPECT_EQ(furthest, ulp);
  }
  set_approximation_ulp(0);
}

}  // namespace
}  // namespace hayloft::simt::ptx
