#include <cstring>

#include "offload/half.h"
#include "simt/tensor_core.h"
#include "tests/simt/ptx/address_spaces.h"
#include "tests/simt/ptx/opcodes/lane_operation.h"

// PTX ISA, "ldmatrix" and "mma": matrices whose elements lie in the registers of all lanes of a warp.
namespace hayloft::simt::ptx {
namespace {

constexpr unsigned kMatrix = 8;    // rows of a matrix that ldmatrix reads
constexpr unsigned kMatrices = 4;  // of one instruction

// Lane 8 m + r names row r of matrix m. A register holds, of one matrix, elements 2 (lane % 4) and the next of row
// lane / 4, or of column lane / 4.
template <bool transposed>
void load_matrices(Warp& warp, const Instruction& in, Mask lanes) {
  std::uint16_t rows[kMatrices][kMatrix][kMatrix];
  for_each_lane(lanes, [&](unsigned lane) {
    const std::uint64_t address = warp.bits(in.base, lane) + static_cast<std::uint64_t>(in.offset);
    std::memcpy(rows[lane / kMatrix][lane % kMatrix],
                warp.memory.at(Space::shared, address, sizeof(rows[0][0]), AddressSpaces::Access::read, warp, lane),
                sizeof(rows[0][0]));
  });
  for_each_lane(lanes, [&](unsigned lane) {
    const unsigned at = lane / 4, first = 2 * (lane % 4);
    for (unsigned m = 0; m < kMatrices; ++m) {
      const auto element = [&](unsigned i) -> std::uint32_t {
        return transposed ? rows[m][first + i][at] : rows[m][at][first + i];
      };
      warp.lanes<std::uint32_t>(in.to[m])[lane] = element(0) | element(1) << 16;
    }
  });
}

// d = a b + c for a [16][k], b [k][8]. Register i of a has rows lane / 4 + 8 (i % 2) and columns 8 (i / 2) +
// 2 (lane % 4) and the next; register i of b rows 8 i + 2 (lane % 4) and the next of column lane / 4; registers 0 and 1
// of c and d columns 2 (lane % 4) and the next of row lane / 4, and 2 and 3 those of row lane / 4 + 8.
template <unsigned k>
void multiply(Warp& warp, const Instruction& in, Mask lanes) {
  constexpr unsigned of_a = k / 4, of_b = k / 8;
  float a[16][k], b[8][k];
  for_each_lane(lanes, [&](unsigned lane) {
    const auto half = [&](unsigned operand, unsigned i) {
      const std::uint32_t bits = warp.lanes<std::uint32_t>(in.from[operand])[lane];
      return to_float(f16{static_cast<std::uint16_t>(bits >> 16 * i)});
    };
    const unsigned at = lane / 4, first = 2 * (lane % 4);
    for (unsigned i = 0; i < 2; ++i) {
      for (unsigned r = 0; r < of_a; ++r) a[at + 8 * (r % 2)][8 * (r / 2) + first + i] = half(r, i);
      for (unsigned r = 0; r < of_b; ++r) b[at][8 * r + first + i] = half(of_a + r, i);
    }
  });
  for_each_lane(lanes, [&](unsigned lane) {
    const unsigned row = lane / 4, column = 2 * (lane % 4);
    for (unsigned i = 0; i < 4; ++i) {
      const float before = warp.lanes<float>(in.from[of_a + of_b + i])[lane];
      warp.lanes<float>(in.to[i])[lane] = add_up_halves(before, a[row + 8 * (i / 2)], b[column + i % 2], k);
    }
  });
}

Opcode product(const char* name, unsigned halves, void (*run)(Warp&, const Instruction&, Mask)) {
  std::vector<Type> from(halves, Type::b32);
  from.insert(from.end(), 4, Type::f32);
  return {.name = name,
          .form = Form::meeting,
          .to = std::vector<Type>(4, Type::f32),
          .from = std::move(from),
          .whole_warp = true,
          .run = run};
}

}  // namespace

void add_matrix_opcodes(std::vector<Opcode>& to) {
  const auto add_load = [&](const char* name, auto run) {
    to.push_back({.name = name,
                  .form = Form::meeting_load,
                  .to = std::vector<Type>(kMatrices, Type::b32),
                  .space = Space::shared,
                  .whole_warp = true,
                  .run = run});
  };
  add_load("ldmatrix.sync.aligned.m8n8.x4.shared.b16", load_matrices<false>);
  add_load("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", load_matrices<true>);
  to.push_back(product("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 3, multiply<8>));
  to.push_back(product("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 6, multiply<16>));
}

}  // namespace hayloft::simt::ptx
