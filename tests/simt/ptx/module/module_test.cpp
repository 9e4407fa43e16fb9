#include "tests/simt/ptx/module/module.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/simt/ptx/module/kernel_text.h"

namespace hayloft::simt::ptx {
namespace {

Kernel parse(const std::string& body) {
  return Module("test.ptx", kernel_text({.body = body})).kernel("kernel");
}

std::string refusal(const std::string& body) {
  try {
    parse(body);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(PtxModule, AnUnknownOpcodeIsRefusedByNameAndLine) {
  EXPECT_EQ(refusal("\n\n tanh.approx.f32 %f0, %f1;\n"),
            "test.ptx: line 14: the opcode 'tanh.approx.f32' is not known here");
  EXPECT_EQ(refusal("add.cc.u32 %r0, %r1, %r2;"), "test.ptx: line 12: the opcode 'add.cc.u32' is not known here");
  EXPECT_EQ(refusal("@%p0 ld.global.v4.u64 {%rd0, %rd1, %rd2, %rd3}, [%rd0];"),
            "test.ptx: line 12: the opcode 'ld.global.v4.u64' is not known here");
  EXPECT_EQ(refusal("mov.b128 %rd0, {%rd1, %rd2};"), "test.ptx: line 12: the opcode 'mov.b128 pack' is not known here");
}

TEST(PtxModule, AnUnknownDirectiveIsRefused) {
  EXPECT_EQ(refusal(".local .b32 x;"), "test.ptx: line 12: the directive '.local' is not known here");
  EXPECT_THROW(Module("test.ptx", ".version 9.0\n.global .b32 x;\n"), std::runtime_error);
}

TEST(PtxModule, OperandsHaveTheNumberAndWidthOfTheOpcode) {
  EXPECT_EQ(refusal("add.s32 %r0, %r1;"), "test.ptx: line 12: 1 operands where add.s32 takes 2");
  EXPECT_EQ(refusal("add.s32 %r0, %rd1, %r2;"), "test.ptx: line 12: %rd1 of 8 bytes where add.s32 takes 4");
  EXPECT_EQ(refusal("selp.b32 %r0, %r1, %r2, %r3;"), "test.ptx: line 12: %r3 of 4 bytes where selp.b32 takes 0");
  EXPECT_EQ(refusal("ld.shared.u64 %r0, [%r1];"), "test.ptx: line 12: %r0 of 4 bytes where ld.shared.u64 takes 8");
  EXPECT_EQ(refusal("ld.shared.u16 %r0, [%r1];"), "nothing");  // may be wider
  EXPECT_EQ(refusal("mov.u32 %r0, %r99;"), "test.ptx: line 12: '%r99' is neither declared nor a number");
  EXPECT_EQ(refusal("bra nowhere;"), "test.ptx: line 12: a branch to nowhere, which is nowhere");
}

TEST(PtxModule, ParametersLieAtTheirAlignment) {
  const Module module("test.ptx",
                      ".version 9.0\n.target sm_89\n.address_size 64\n"
                      ".visible .entry kernel(.param .u8 a, .param .align 8 .b8 b[12], .param .u16 c, .param .f64 d)\n"
                      ".maxntid 64, 2, 1\n{ ret; }\n");
  const Kernel kernel = module.kernel("kernel");
  ASSERT_EQ(kernel.parameters.size(), 4u);
  EXPECT_EQ(kernel.parameters[1].offset, 8u);
  EXPECT_EQ(kernel.parameters[1].bytes, 12u);
  EXPECT_EQ(kernel.parameters[2].offset, 20u);
  EXPECT_EQ(kernel.parameters[3].offset, 24u);
  EXPECT_EQ(kernel.parameter_bytes, 32u);
  EXPECT_EQ(kernel.most_threads, 128u);
}

TEST(PtxModule, StaticSharedMemoryLiesAtItsAlignment) {
  const Kernel kernel = parse(".shared .align 4 .b8 small[6]; .shared .align 16 .b8 large[32];");
  EXPECT_EQ(kernel.static_shared_bytes, 48u);
}

TEST(PtxModule, KernelsGoByTheirDemangledNames) {
  const Module module("test.ptx", ".version 9.0\n.entry _ZN3gpu4cuda3addEPfi(.param .u64 a, .param .u32 b) { ret; }\n");
  EXPECT_EQ(module.kernels(), std::vector<std::string>{"gpu::cuda::add(float*, int)"});
  EXPECT_THROW(module.kernel("gpu::cuda::add(float*)"), std::out_of_range);
}

TEST(PtxModule, PlacesNameTheSourceWhereItIsKnown) {
  const Module module("test.ptx",
                      ".version 9.0\n.entry kernel() {\n.reg .b32 %r<2>;\n.loc 1 20 3\n.loc 2 99 1, function_name $L, "
                      "inlined_at 1 20 3\nmov.u32 %r0, 1;\nret;\n}\n"
                      ".file 1 \"/home/x/gpu/cuda/kernels/rows.cuh\"\n.file 2 \"/usr/include/cuda_fp16.hpp\"\n");
  const Kernel kernel = module.kernel("kernel");
  EXPECT_EQ(module.place(kernel.code[0]), "test.ptx:6 (gpu/cuda/kernels/rows.cuh:20)");
  EXPECT_EQ(module.line(6), "mov.u32 %r0, 1;");
}

TEST(PtxModule, RegistersOfAnEndedScopeAreUsedAgain) {
  const std::string scope = "{ .reg .f16 low, high; mov.b32 {low, high}, %r0; }\n";
  EXPECT_EQ(parse(scope + scope + scope).register_bytes, parse(scope).register_bytes);
  EXPECT_EQ(refusal("{ .reg .b32 x; } mov.u32 x, 1;"), "test.ptx: line 12: 'x' is neither declared nor a number");
}

}  // namespace
}  // namespace hayloft::simt::ptx
