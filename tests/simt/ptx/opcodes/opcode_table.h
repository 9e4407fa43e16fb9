#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simt/ptx/address_spaces.h"
#include "tests/simt/ptx/warp.h"

// Tables of what the PTX manual says that opcodes give, for the tests of each family.
namespace hayloft::simt::ptx {

constexpr std::uint64_t bits(float x) {
  return std::bit_cast<std::uint32_t>(x);
}
constexpr std::uint64_t bits(double x) {
  return std::bit_cast<std::uint64_t>(x);
}

struct OpcodeCase {
  std::string opcode;
  std::vector<std::uint64_t> from;  // bits of the operands
  std::vector<std::uint64_t> to;    // of the destinations
};

// A warp with a register for each operand of one opcode.
class OpcodeBench {
 public:
  explicit OpcodeBench(const std::string& name) {
    instruction_.opcode = opcodes().at(name);
    const auto place = [&](Operands& operands, const std::vector<Type>& types) {
      for (const Type type : types) {
        operands.of[operands.count++] = {static_cast<unsigned>(kernel_.register_bytes), bytes(type)};
        kernel_.register_bytes += 8 * kLanes;
      }
    };
    place(instruction_.to, instruction_.opcode->to);
    place(instruction_.from, instruction_.opcode->from);
  }

  // Runs these lanes; all others are checked to keep what they had.
  std::vector<std::uint64_t> run(const std::vector<std::uint64_t>& from, Mask lanes) {
    AddressSpaces memory(
        {}, 0, [](std::uint64_t) { return AddressRange{}; }, Races::ignored);
    Warp warp(kernel_, memory, 0, kLanes);
    warp.fill_registers(std::byte{0xd5});
    for (unsigned i = 0; i < instruction_.from.count; ++i) {
      for (unsigned lane = 0; lane < kLanes; ++lane) warp.set_bits(instruction_.from[i], lane, from.at(i));
    }
    const Warp before = warp;
    instruction_.opcode->run(warp, instruction_, lanes);
    std::vector<std::uint64_t> to;
    for (unsigned i = 0; i < instruction_.to.count; ++i) {
      const Register& each = instruction_.to[i];
      const auto first = static_cast<unsigned>(std::countr_zero(lanes));
      to.push_back(warp.bits(each, first));
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        const bool ran = (lanes >> lane & 1) != 0;
        EXPECT_EQ(warp.bits(each, lane), ran ? to.back() : Warp(before).bits(each, lane))
            << instruction_.opcode->name << " in lane " << lane << " of " << std::hex << lanes;
      }
    }
    return to;
  }

 private:
  Kernel kernel_;
  Instruction instruction_;
};

// Every line, in all lanes and in some; and every opcode with one of these beginnings has a line.
inline void check_table(const std::vector<OpcodeCase>& table, const std::vector<std::string_view>& families) {
  std::set<std::string_view> seen;
  for (const OpcodeCase& line : table) {
    seen.insert(line.opcode);
    ASSERT_TRUE(opcodes().count(line.opcode)) << line.opcode;
    OpcodeBench bench(line.opcode);
    for (const Mask lanes : {~Mask{0}, Mask{0x80000001}, Mask{0x00010000}}) {
      EXPECT_EQ(bench.run(line.from, lanes), line.to)
          << line.opcode << " of " << std::hex << ::testing::PrintToString(line.from);
    }
  }
  for (const auto& [name, opcode] : opcodes()) {
    for (const std::string_view family : families) {
      if (name.starts_with(family) && seen.count(name) == 0) ADD_FAILURE() << name << " has no line";
    }
  }
}

}  // namespace hayloft::simt::ptx
