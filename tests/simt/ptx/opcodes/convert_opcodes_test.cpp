#include <limits>

#include "tests/simt/ptx/opcodes/opcode_table.h"
#include "tests/simt/ptx/opcodes/special_values.h"

// PTX ISA, "cvt", "mov" and "Comparison and Selection Instructions".
namespace hayloft::simt::ptx {
namespace {

TEST(PtxConversions, IntegersAreCutAndExtendedByTheirOwnSign) {
  check_table(
      {
          {"cvt.s32.s8", {0x80}, {0xffffff80}},
          {"cvt.s32.s8", {0x7f}, {0x7f}},
          {"cvt.s16.s8", {0x80}, {0xff80}},
          {"cvt.s16.s8", {0x7f}, {0x7f}},
          {"cvt.u32.u8", {0x80}, {0x80}},
          {"cvt.u16.u64", {0x1234567890abcdef}, {0xcdef}},
          {"cvt.u16.u32", {0x12348765}, {0x8765}},
          {"cvt.u32.u16", {0x8765}, {0x8765}},
          {"cvt.u32.u64", {0x1234567890abcdef}, {0x90abcdef}},
          {"cvt.u64.u32", {all32}, {all32}},
          {"cvt.u64.u16", {0x18765}, {0x8765}},
          {"cvt.s64.s32", {0x80000000}, {0xffffffff80000000}},
          {"cvt.s64.s32", {5}, {5}},
      },
      {"cvt.s32.s", "cvt.s16.s", "cvt.u32", "cvt.u16", "cvt.u64", "cvt.s64"});
}

TEST(PtxConversions, FloatsRoundToNearestAndMakeOneNaN) {
  check_table(
      {
          {"cvt.f32.f16", {0x3c00}, {bits(1.0f)}},
          {"cvt.f32.f16", {0x0001}, {bits(5.9604644775390625e-8f)}},
          {"cvt.f32.f16", {0x8000}, {minus0}},
          {"cvt.f32.f16", {0xfc00}, {bits(-inf)}},
          {"cvt.f32.f16", {0x7e01}, {nan32}},
          {"cvt.rn.f16.f32", {bits(1.0f + 0x1p-11f)}, {0x3c00}},  // half to even
          {"cvt.rn.f16.f32", {bits(1.0f + 3 * 0x1p-11f)}, {0x3c02}},
          {"cvt.rn.f16.f32", {bits(65519.0f)}, {0x7bff}},
          {"cvt.rn.f16.f32", {bits(65520.0f)}, {0x7c00}},
          {"cvt.rn.f16.f32", {bits(-0x1p-25f)}, {0x8000}},
          {"cvt.rn.f16.f32", {bits(0x1.8p-25f)}, {0x0001}},
          {"cvt.rn.f16.f32", {payload32}, {0x7fff}},
          {"cvt.rn.f16x2.f32", {bits(1.0f), bits(-0x1p-25f)}, {0x3c008000}},
          {"cvt.rn.f16x2.f32", {payload32, bits(65520.0f)}, {0x7fff7c00}},
          {"cvt.f64.f32", {bits(0x1p-149f)}, {bits(0x1p-149)}},
          {"cvt.f64.f32", {bits(-inf)}, {bits(-std::numeric_limits<double>::infinity())}},
          {"cvt.rn.f32.f64", {bits(1 + 0x1p-24)}, {bits(1.0f)}},
          {"cvt.rn.f32.f64", {bits(1e300)}, {bits(inf)}},
          {"cvt.rn.f32.f64", {bits(0x1p-150)}, {0}},
          {"cvt.rn.f32.f64", {0x7ff8000000000000}, {nan32}},
          {"cvt.rn.f32.s16", {0x8000}, {bits(-32768.0f)}},
          {"cvt.rn.f32.s16", {0x7fff}, {bits(32767.0f)}},
          {"cvt.rn.f32.s32", {16777217}, {bits(16777216.0f)}},
          {"cvt.rn.f32.s32", {all32}, {bits(-1.0f)}},
          {"cvt.rn.f32.u32", {all32}, {bits(4294967296.0f)}},
          {"cvt.rn.f64.s32", {0x80000000}, {bits(-2147483648.0)}},
          {"cvt.rn.f64.s64", {~std::uint64_t{0}}, {bits(-1.0)}},
          {"cvt.rn.f64.s64", {(std::uint64_t{1} << 53) + 1}, {bits(9007199254740992.0)}},
      },
      {"cvt.f32", "cvt.f64", "cvt.rn."});
}

TEST(PtxConversions, ToWholeNumbersAndIntoTheUnitInterval) {
  check_table(
      {
          {"cvt.rzi.s32.f32", {bits(-1.9f)}, {all32}},
          {"cvt.rzi.s32.f32", {bits(3e9f)}, {0x7fffffff}},
          {"cvt.rzi.s32.f32", {bits(-inf)}, {0x80000000}},
          {"cvt.rzi.s32.f32", {payload32}, {0}},
          {"cvt.rzi.s64.f64", {bits(-1.9)}, {~std::uint64_t{0}}},
          {"cvt.rzi.s64.f64", {bits(1e300)}, {0x7fffffffffffffff}},
          {"cvt.rzi.s64.f64", {0x7ff8000000000000}, {0x8000000000000000}},
          {"cvt.rzi.f32.f32", {bits(-0.5f)}, {minus0}},
          {"cvt.rzi.f32.f32", {bits(2.9f)}, {bits(2.0f)}},
          {"cvt.rmi.f32.f32", {bits(2.5f)}, {bits(2.0f)}},
          {"cvt.rmi.f32.f32", {bits(-2.5f)}, {bits(-3.0f)}},
          {"cvt.rmi.f32.f32", {bits(-4.0f)}, {bits(-4.0f)}},
          {"cvt.rmi.f32.f32", {bits(-inf)}, {bits(-inf)}},
          {"cvt.rni.f32.f32", {bits(2.5f)}, {bits(2.0f)}},
          {"cvt.rni.f32.f32", {bits(3.5f)}, {bits(4.0f)}},
          {"cvt.rni.f32.f32", {bits(-0.5f)}, {minus0}},
          {"cvt.rni.f32.f32", {bits(inf)}, {bits(inf)}},
          {"cvt.rni.f64.f64", {bits(-2.5)}, {bits(-2.0)}},
          {"cvt.sat.f32.f32", {bits(1.5f)}, {bits(1.0f)}},
          {"cvt.sat.f32.f32", {bits(0.25f)}, {bits(0.25f)}},
          {"cvt.sat.f32.f32", {bits(-inf)}, {0}},
          {"cvt.sat.f32.f32", {minus0}, {0}},
          {"cvt.sat.f32.f32", {payload32}, {0}},
      },
      {"cvt.rzi", "cvt.rmi", "cvt.rni", "cvt.sat"});
}

TEST(PtxMoves, KeepEveryBit) {
  std::vector<OpcodeCase> table{
      {"mov.pred", {1}, {1}},
      {"mov.pred", {0}, {0}},
      {"mov.b32 pack", {0x1234, 0x8765}, {0x87651234}},
      {"mov.b64 pack", {0x12345678, 0x87654321}, {0x8765432112345678}},
      {"mov.b32 unpack", {0x87651234}, {0x1234, 0x8765}},
      {"mov.b64 unpack", {0x8765432112345678}, {0x12345678, 0x87654321}},
      {"cvta.to.global.u64", {0x123456789a}, {0x123456789a}},
  };
  for (const char* name : {"mov.b16", "mov.u16"}) table.push_back({name, {0x8001}, {0x8001}});
  for (const char* name : {"mov.b32", "mov.u32", "mov.f32"}) table.push_back({name, {payload32}, {payload32}});
  for (const char* name : {"mov.b64", "mov.u64", "mov.f64"})
    table.push_back({name, {0x7ff4000000000001}, {0x7ff4000000000001}});
  check_table(table, {"mov.p", "mov.b", "mov.f", "mov.u16", "mov.u32", "cvta"});
}

TEST(PtxMoves, TheClockOfAllLanesIsOne) {
  OpcodeBench bench("mov.u64 %globaltimer");
  const std::uint64_t first = bench.run({}, ~Mask{0})[0];
  EXPECT_GE(bench.run({}, ~Mask{0})[0], first);
}

// One line per pair of operands for each of the six orders.
template <class T>
void add_orders(std::vector<OpcodeCase>& table, const std::string& type, T less, T more) {
  const auto add = [&](const std::string& comparison, T a, T b, bool holds) {
    std::uint64_t x = 0, y = 0;
    if constexpr (std::is_floating_point_v<T>) {
      x = bits(a), y = bits(b);
    } else {
      x = std::make_unsigned_t<T>(a), y = std::make_unsigned_t<T>(b);
    }
    table.push_back({"setp." + comparison + "." + type, {x, y}, {holds}});
  };
  for (const auto& [a, b] : {std::pair(less, more), std::pair(more, less), std::pair(less, less)}) {
    add("eq", a, b, a == b);
    add("ne", a, b, a != b);
    add("lt", a, b, a < b);
    add("le", a, b, a <= b);
    add("gt", a, b, a > b);
    add("ge", a, b, a >= b);
    if constexpr (std::is_floating_point_v<T>) {
      add("equ", a, b, a == b);
      add("neu", a, b, a != b);
      add("ltu", a, b, a < b);
      add("leu", a, b, a <= b);
      add("gtu", a, b, a > b);
      add("geu", a, b, a >= b);
      add("num", a, b, true);
      add("nan", a, b, false);
    }
  }
}

TEST(PtxComparisons, OrdersGoByTheTypeAndWithNaNByTheEndingOfTheName) {
  std::vector<OpcodeCase> table{{"setp.eq.b32", {all32, all32}, {1}}, {"setp.eq.b32", {all32, 0}, {0}},
                                {"setp.ne.b32", {all32, all32}, {0}}, {"setp.ne.b32", {all32, 1}, {1}},
                                {"setp.eq.f32", {minus0, 0}, {1}},    {"setp.lt.f32", {minus0, 0}, {0}}};
  add_orders<std::int16_t>(table, "s16", -1, 1);
  add_orders<std::uint16_t>(table, "u16", 1, 0xffff);
  add_orders<std::int32_t>(table, "s32", -1, 1);
  add_orders<std::uint32_t>(table, "u32", 1, 0xffffffff);
  add_orders<std::int64_t>(table, "s64", std::numeric_limits<std::int64_t>::min(), 0);
  add_orders<std::uint64_t>(table, "u64", 1, std::uint64_t{1} << 63);
  add_orders<float>(table, "f32", 0, 0x1p-149f);
  add_orders<double>(table, "f64", -1, 1);
  for (const char* ordered : {"eq", "ne", "lt", "le", "gt", "ge", "num"}) {
    table.push_back({std::string("setp.") + ordered + ".f32", {nan32, bits(1.0f)}, {0}});
    table.push_back({std::string("setp.") + ordered + ".f32", {nan32, nan32}, {0}});
    table.push_back({std::string("setp.") + ordered + ".f64", {bits(1.0), 0x7ff8000000000000}, {0}});
  }
  for (const char* unordered : {"equ", "neu", "ltu", "leu", "gtu", "geu", "nan"}) {
    table.push_back({std::string("setp.") + unordered + ".f32", {bits(1.0f), nan32}, {1}});
    table.push_back({std::string("setp.") + unordered + ".f64", {0x7ff8000000000000, bits(1.0)}, {1}});
  }
  check_table(table, {"setp"});
}

TEST(PtxComparisons, SelectionTakesTheFirstWhereThePredicateHolds) {
  std::vector<OpcodeCase> table;
  for (const char* type : {"b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"}) {
    table.push_back({std::string("selp.") + type, {0x8123, 0x4567, 1}, {0x8123}});
    table.push_back({std::string("selp.") + type, {0x8123, 0x4567, 0}, {0x4567}});
  }
  check_table(table, {"selp"});
}

}  // namespace
}  // namespace hayloft::simt::ptx
