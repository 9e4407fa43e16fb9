#include "tests/simt/ptx/opcodes/opcode_table.h"
#include "tests/simt/ptx/opcodes/special_values.h"

// PTX ISA, "Integer Arithmetic Instructions" and "Logic and Shift Instructions".
namespace hayloft::simt::ptx {
namespace {

constexpr std::uint64_t all64 = ~std::uint64_t{0};
constexpr std::uint64_t low64 = std::uint64_t{1} << 63;  // the most negative number
constexpr std::uint64_t low32 = 0x80000000u;

TEST(PtxIntegerOpcodes, SumsAndProductsWrap) {
  check_table(
      {
          {"add.s16", {0x7fff, 1}, {0x8000}},
          {"add.s16", {0xffff, 1}, {0}},
          {"add.s32", {0x7fffffff, 1}, {low32}},
          {"add.s32", {all32, all32}, {0xfffffffe}},
          {"add.s64", {all64, 1}, {0}},
          {"add.s64", {0x00000000ffffffff, 1}, {0x100000000}},
          {"sub.s16", {0, 1}, {0xffff}},
          {"sub.s32", {low32, 1}, {0x7fffffff}},
          {"sub.s64", {0, 1}, {all64}},
          {"mul.lo.s16", {0x8000, 2}, {0}},
          {"mul.lo.s16", {0xffff, 0xffff}, {1}},
          {"mul.lo.s32", {0x10000, 0x10000}, {0}},
          {"mul.lo.s32", {all32, 7}, {0xfffffff9}},
          {"mul.lo.s64", {0x100000000, 0x100000000}, {0}},
          {"mul.lo.s64", {all64, 3}, {all64 - 2}},
          {"mul.hi.u32", {all32, all32}, {0xfffffffe}},
          {"mul.hi.s32", {all32, all32}, {0}},
          {"mul.hi.s32", {0x80000000, 3}, {0xfffffffe}},
          {"mul.wide.s32", {all32, all32}, {1}},
          {"mul.wide.s32", {low32, 2}, {0xffffffff00000000}},
          {"mul.wide.u32", {all32, all32}, {0xfffffffe00000001}},
          {"mad.lo.s16", {3, 0xffff, 5}, {2}},
          {"mad.lo.s32", {0x10000, 0x10000, 9}, {9}},
          {"mad.lo.s32", {all32, 2, 1}, {all32}},
          {"mad.lo.s64", {all64, 2, 1}, {all64}},
          {"neg.s32", {low32}, {low32}},
          {"neg.s32", {1}, {all32}},
          {"neg.s64", {low64}, {low64}},
          {"neg.s64", {1}, {all64}},
      },
      {"add.s", "sub.s", "mul.lo", "mul.hi", "mul.wide", "mad", "neg.s"});
}

TEST(PtxIntegerOpcodes, QuotientsAreTruncatedAndRemaindersHaveTheSignOfTheDividend) {
  check_table(
      {
          {"div.s32", {static_cast<std::uint32_t>(-7), 2}, {static_cast<std::uint32_t>(-3)}},
          {"div.s32", {low32, all32}, {low32}},
          {"div.u32", {all32, 2}, {0x7fffffff}},
          {"div.s64", {all64 - 6, 2}, {all64 - 2}},
          {"div.s64", {low64, all64}, {low64}},
          {"div.u64", {all64, 2}, {0x7fffffffffffffff}},
          {"rem.s32", {static_cast<std::uint32_t>(-7), 2}, {all32}},
          {"rem.s32", {7, static_cast<std::uint32_t>(-2)}, {1}},
          {"rem.s32", {low32, all32}, {0}},
          {"rem.u32", {all32, 16}, {15}},
          {"rem.s64", {all64 - 6, 2}, {all64}},
          {"rem.s64", {low64, all64}, {0}},
          {"rem.u64", {all64, 16}, {15}},
      },
      {"div.s", "div.u", "rem"});
}

TEST(PtxIntegerOpcodes, DivisionByZeroIsAFaultOfItsLane) {
  for (const char* name : {"div.s32", "div.u32", "div.s64", "div.u64", "rem.s32", "rem.u64"}) {
    OpcodeBench bench(name);
    try {
      bench.run({1, 0}, 0x8);
      FAIL() << name;
    } catch (const Fault& fault) {
      EXPECT_EQ(fault.lane, 3u) << name;
    }
  }
}

TEST(PtxIntegerOpcodes, TheLesserAndTheGreaterGoByTheSignOfTheType) {
  check_table(
      {
          {"min.s32", {all32, 1}, {all32}},
          {"max.s32", {all32, 1}, {1}},
          {"min.u32", {all32, 1}, {1}},
          {"max.u32", {all32, 1}, {all32}},
          {"min.s64", {all64, 1}, {all64}},
          {"max.s64", {low64, 0}, {0}},
          {"min.u64", {all64, 1}, {1}},
          {"max.u64", {low64, 0}, {low64}},
      },
      {"min.s", "min.u", "max.s", "max.u"});
}

TEST(PtxIntegerOpcodes, ShiftsPastTheWidthGiveZeroOrTheSign) {
  check_table(
      {
          {"shl.b32", {all32, 31}, {low32}},
          {"shl.b32", {all32, 32}, {0}},
          {"shl.b32", {1, all32}, {0}},
          {"shl.b64", {1, 63}, {low64}},
          {"shl.b64", {1, 64}, {0}},
          {"shr.u16", {0xffff, 10}, {0x3f}},
          {"shr.u16", {0xffff, 16}, {0}},
          {"shr.u32", {low32, 31}, {1}},
          {"shr.u32", {low32, 32}, {0}},
          {"shr.u64", {low64, 63}, {1}},
          {"shr.u64", {low64, 64}, {0}},
          {"shr.u64", {low64, all32}, {0}},
          {"shr.s32", {low32, 4}, {0xf8000000}},
          {"shr.s32", {low32, 32}, {all32}},
          {"shr.s32", {0x7fffffff, 99}, {0}},
          {"shr.s64", {low64, 63}, {all64}},
          {"shr.s64", {low64, all32}, {all64}},
      },
      {"shl", "shr"});
}

TEST(PtxIntegerOpcodes, LogicGoesBitByBit) {
  check_table(
      {
          {"and.pred", {1, 0}, {0}},
          {"and.pred", {1, 1}, {1}},
          {"or.pred", {0, 1}, {1}},
          {"or.pred", {0, 0}, {0}},
          {"xor.pred", {1, 1}, {0}},
          {"xor.pred", {1, 0}, {1}},
          {"not.pred", {0}, {1}},
          {"not.pred", {1}, {0}},
          {"and.b16", {0xff0f, 0x0fff}, {0x0f0f}},
          {"or.b16", {0xf000, 0x000f}, {0xf00f}},
          {"xor.b16", {0xffff, 0x00ff}, {0xff00}},
          {"not.b16", {0x00ff}, {0xff00}},
          {"and.b32", {0xffff0000, 0x00ffff00}, {0x00ff0000}},
          {"or.b32", {0xff000000, 0x000000ff}, {0xff0000ff}},
          {"xor.b32", {all32, 0x0000ffff}, {0xffff0000}},
          {"not.b32", {0}, {all32}},
          {"and.b64", {all64, 0x8000000000000001}, {0x8000000000000001}},
          {"or.b64", {low64, 1}, {0x8000000000000001}},
          {"xor.b64", {all64, 1}, {all64 - 1}},
          {"not.b64", {0}, {all64}},
      },
      {"and", "or", "xor", "not"});
}

TEST(PtxIntegerOpcodes, PairsAreMultipliedWithBytes) {
  check_table(
      {
          {"dp2a.lo.s32.u32", {0xfffe0003, 0x0908ff02, 100}, {static_cast<std::uint32_t>(100 + 3 * 2 - 2 * 255)}},
          {"dp2a.hi.s32.u32", {0xfffe0003, 0x0908ff02, 100}, {100 + 3 * 8 - 2 * 9}},
          {"dp2a.lo.s32.s32", {0xfffe0003, 0x0908ff02, 100}, {100 + 3 * 2 + 2}},
          {"dp2a.hi.s32.s32", {0x80007fff, 0x807f0000, 0}, {32767 * 127 + 32768 * 128}},
      },
      {"dp2a"});
}

TEST(PtxIntegerOpcodes, BitsAreCountedInsertedAndPermuted) {
  check_table(
      {
          {"popc.b32", {all32}, {32}},
          {"popc.b32", {0x80000001}, {2}},
          {"popc.b32", {0}, {0}},
          {"bfi.b32", {0xff, 0, 8, 4}, {0xf00}},
          {"bfi.b32", {0, all32, 4, 8}, {0xfffff00f}},
          {"bfi.b32", {all32, 0, 28, 8}, {0xf0000000}},
          {"bfi.b32", {all32, 7, 32, 8}, {7}},
          {"bfi.b32", {all32, 7, 0, 0}, {7}},
          {"bfi.b32", {0x12345678, all32, 0, 32}, {0x12345678}},
          {"bfi.b32", {all32, 0, 0x104, 0x104}, {0xf0}},  // only the low 8 bits of both count
          {"shf.r.wrap.b32", {0x03020100, 0x07060504, 8}, {0x04030201}},
          {"shf.r.wrap.b32", {0x03020100, 0x07060504, 0}, {0x03020100}},
          {"shf.r.wrap.b32", {0x80000001, 0x80000001, 33}, {0xc0000000}},  // only the low 5 bits count
          {"shf.l.wrap.b32", {0x03020100, 0x07060504, 8}, {0x06050403}},
          {"shf.l.wrap.b32", {0x03020100, 0x07060504, 32}, {0x07060504}},
          {"prmt.b32", {0x03020100, 0x07060504, 0x7531}, {0x07050301}},
          {"prmt.b32", {0x03020100, 0x07060504, 0x3210}, {0x03020100}},
          {"prmt.b32", {0x00008000, 0x00000000, 0x0009}, {0x000000ff}},  // the sign of byte 1, then bytes 0
          {"prmt.b32", {0x00007f00, 0x00000000, 0x9999}, {0}},
      },
      {"popc", "bfi", "prmt", "shf."});
}

}  // namespace
}  // namespace hayloft::simt::ptx
