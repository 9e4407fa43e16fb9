#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>

#include "offload/half.h"
#include "tests/simt/ptx/grid_run.h"
#include "tests/simt/ptx/module/kernel_text.h"

// Matrices in the registers of a warp, and copies that arrive later, by kernels written out in PTX.
namespace hayloft::simt::ptx {
namespace {

class PtxMatrices : public ::testing::Test {
 protected:
  // `data`, the kernel's parameter, is the address of data_; %rd1 is that of the thread's 16 bytes in it, and %r1 of
  // its 16 bytes in shared memory.
  std::string run(const std::string& body) {
    const std::string begin =
        "ld.param.u64 %rd0, [data];\nmov.u32 %r0, %tid.x;\nshl.b32 %r1, %r0, 4;\ncvt.u64.u32 %rd2, %r1;\n"
        "add.s64 %rd1, %rd0, %rd2;\n";
    const Module module("test.ptx", kernel_text({begin + body}));
    const auto at = reinterpret_cast<std::uint64_t>(data_.data());
    std::array<std::byte, 8> parameters;
    std::memcpy(parameters.data(), &at, sizeof at);
    std::mt19937_64 random(1);
    const auto find_piece = [&](std::uint64_t) { return AddressRange{at, at + sizeof(data_)}; };
    return run_kernel(module, module.kernel("kernel"), {{1}, {32}, 1024}, parameters, find_piece,
                      {.races = Races::shared}, random)
        .failure;
  }

  alignas(16) std::array<std::uint32_t, 1024> data_{};
};

constexpr const char* copy = "cp.async.cg.shared.global [%r1], [%rd1], 16;\n";
constexpr const char* into_data = "st.global.v4.u32 [%rd1], {%r4, %r5, %r6, %r7};";

TEST_F(PtxMatrices, ACopyIsThereOnceItWasWaitedFor) {
  for (std::size_t i = 0; i < 128; ++i) data_[i] = static_cast<std::uint32_t>(i);
  const std::string load = "ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r1];\n";
  ASSERT_EQ(run(copy + load + into_data), "");
  for (std::size_t i = 0; i < 128; ++i) ASSERT_EQ(data_[i], 0xffffffffu) << "it has not arrived";
  for (std::size_t i = 0; i < 128; ++i) data_[i] = static_cast<std::uint32_t>(i);
  ASSERT_EQ(run(std::string(copy) + "cp.async.wait_all;\n" + load + into_data), "");
  for (std::size_t i = 0; i < 128; ++i) ASSERT_EQ(data_[i], i);
}

TEST_F(PtxMatrices, WhatOthersCopiedIsReadBehindABarrierOnly) {
  const std::string load = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r1];\n";
  EXPECT_EQ(run(std::string(copy) + "cp.async.wait_all;\nbar.sync 0;\n" + load + into_data), "");
  // Lanes name the rows that they have copied themselves: no other thread reads them before the barrier.
  const std::string next = "add.s32 %r2, %r1, 16;\nand.b32 %r2, %r2, 511;\nld.shared.u32 %r4, [%r2];\n";
  EXPECT_NE(run(std::string(copy) + "cp.async.wait_all;\n" + next).find("race"), std::string::npos);
}

// Register i has elements 2 (lane % 4) and the next of row lane / 4 of matrix i, or of its column.
TEST_F(PtxMatrices, AreLoadedByRowsAndByColumns) {
  for (const bool transposed : {false, true}) {
    auto* const halves = reinterpret_cast<std::uint16_t*>(data_.data());
    for (std::size_t i = 0; i < 256; ++i) halves[i] = static_cast<std::uint16_t>(i);
    ASSERT_EQ(run(std::string(copy) + "cp.async.wait_all;\nbar.sync 0;\nldmatrix.sync.aligned.m8n8.x4." +
                  (transposed ? "trans." : "") + "shared.b16 {%r4, %r5, %r6, %r7}, [%r1];\n" + into_data),
              "");
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned matrix = 0; matrix < 4; ++matrix) {
        for (unsigned i = 0; i < 2; ++i) {
          const unsigned one = lane / 4, other = 2 * (lane % 4) + i;
          const unsigned wanted = 64 * matrix + (transposed ? 8 * other + one : 8 * one + other);
          ASSERT_EQ(halves[lane * 8 + matrix * 2 + i], wanted) << lane << " " << matrix;
        }
      }
    }
  }
}

TEST_F(PtxMatrices, AreMultipliedByTheDefinition) {
  for (const unsigned k : {8u, 16u}) {
    std::mt19937 random(k);
    std::uniform_int_distribution<int> whole(-8, 8);  // whose sums are exact
    std::array<std::array<int, 16>, 16> a{};          // [16][k]
    std::array<std::array<int, 8>, 16> b{};           // [k][8]
    for (auto& row : a) {
      for (int& x : row) x = whole(random);
    }
    for (auto& row : b) {
      for (int& x : row) x = whole(random);
    }
    const auto pair = [](int low, int high) {
      return to_f16(static_cast<float>(low)).bits | static_cast<std::uint32_t>(to_f16(static_cast<float>(high)).bits)
                                                        << 16;
    };
    // A lane's registers of a and b lie behind one another at 32 bytes of its own.
    const unsigned of_a = k / 4, of_b = k / 8;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned at = lane / 4, first = 2 * (lane % 4);
      for (unsigned r = 0; r < of_a; ++r) {
        const auto& row = a[at + 8 * (r % 2)];
        data_[8 * lane + r] = pair(row[8 * (r / 2) + first], row[8 * (r / 2) + first + 1]);
      }
      for (unsigned r = 0; r < of_b; ++r) {
        data_[8 * lane + of_a + r] = pair(b[8 * r + first][at], b[8 * r + first + 1][at]);
      }
    }
    const std::string load =
        "shl.b32 %r2, %r0, 5;\ncvt.u64.u32 %rd2, %r2;\nadd.s64 %rd1, %rd0, %rd2;\n"
        "ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1];\nld.global.v4.u32 {%r8, %r9, %r10, %r11}, [%rd1+16];\n"
        "mov.f32 %f0, 0f3F800000;\nmov.f32 %f1, %f0;\nmov.f32 %f2, %f0;\nmov.f32 %f3, %f0;\n";
    const std::string multiply =
        k == 8 ? "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5}, {%r6}, "
                 "{%f0, %f1, %f2, %f3};\n"
               : "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5, %r6, %r7}, "
                 "{%r8, %r9}, {%f0, %f1, %f2, %f3};\n";
    ASSERT_EQ(run(load + multiply + "st.global.v4.f32 [%rd1], {%f0, %f1, %f2, %f3};"), "");
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
        int wanted = 1;
        for (unsigned j = 0; j < k; ++j) wanted += a[row][j] * b[j][column];
        float found;
        std::memcpy(&found, &data_[8 * lane + i], sizeof found);
        ASSERT_EQ(found, static_cast<float>(wanted)) << "k = " << k << ", row " << row << ", column " << column;
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::simt::ptx
