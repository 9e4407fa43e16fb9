#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>

#include "tests/simt/ptx/grid_run.h"
#include "tests/simt/ptx/module/kernel_text.h"

// Memory, barriers, races and orders of threads, by kernels written out in PTX.
namespace hayloft::simt::ptx {
namespace {

struct Launch {
  unsigned threads = 32;
  unsigned blocks = 1;
  std::size_t shared_bytes = 0;  // dynamic
  RunOptions options{};
  unsigned seed = 1;
};

class PtxRunTest : public ::testing::Test {
 protected:
  // `data`, the kernel's parameter, is the address of data_, which is all of global memory.
  std::string run(const KernelText& text, const Launch& setup = {}) {
    const Module module("test.ptx", kernel_text(text));
    const Kernel kernel = module.kernel("kernel");
    const auto begin = reinterpret_cast<std::uint64_t>(data_.data());
    std::array<std::byte, 8> parameters;
    std::memcpy(parameters.data(), &begin, sizeof(begin));
    const auto find_piece = [&](std::uint64_t address) {
      const AddressRange all{begin, begin + sizeof(data_)};
      return address >= all.begin && address < all.end ? all : AddressRange{};
    };
    std::mt19937_64 random(setup.seed);
    const Grid grid{{setup.blocks}, {setup.threads}, setup.shared_bytes};
    const RunResult result = run_kernel(module, kernel, grid, parameters, find_piece, setup.options, random);
    instructions_ = result.instructions;
    return result.failure;
  }
  // In every order, some of them with several seeds.
  void run_everywhere(const KernelText& text, Launch setup, const std::function<void()>& check) {
    for (const ScheduleKind kind : {ScheduleKind::lockstep, ScheduleKind::adversarial, ScheduleKind::starving}) {
      for (setup.seed = 1; setup.seed <= 5; ++setup.seed) {
        setup.options.schedule = kind;
        data_.fill(0);
        ASSERT_EQ(run(text, setup), "") << static_cast<int>(kind) << " seed " << setup.seed;
        check();
      }
    }
  }

  alignas(16) std::array<std::uint32_t, 1024> data_{};
  std::uint64_t instructions_ = 0;
};

constexpr const char* address_of_thread =  // %rd1 = data + 4 * thread, %r0 = thread
    "ld.param.u64 %rd0, [data];\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd0, %rd1;\n";

TEST_F(PtxRunTest, ThreadsKnowTheirPlaceInTheGrid) {
  const std::string body = std::string(address_of_thread) +
                           "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmad.lo.s32 %r3, %r1, %r2, %r0;\n"
                           "mul.wide.u32 %rd1, %r3, 4;\nadd.s64 %rd1, %rd0, %rd1;\nst.global.u32 [%rd1], %r3;";
  run_everywhere({body}, {.threads = 70, .blocks = 3}, [&] {
    for (unsigned i = 0; i < 210; ++i) ASSERT_EQ(data_[i], i);
    EXPECT_EQ(instructions_, 210u * 11);
  });
}

TEST_F(PtxRunTest, LanesThatPartComeTogetherAgain) {
  // 3n + 1 until 1: every lane goes round another number of times.
  const std::string body = std::string(address_of_thread) +
                           "add.s32 %r1, %r0, 1;\nmov.u32 %r2, 0;\n"
                           "loop:\nsetp.eq.s32 %p0, %r1, 1;\n@%p0 bra done;\nand.b32 %r3, %r1, 1;\n"
                           "setp.ne.s32 %p1, %r3, 0;\n@%p1 bra odd;\nshr.u32 %r1, %r1, 1;\nbra next;\n"
                           "odd:\nmad.lo.s32 %r1, %r1, 3, 1;\nnext:\nadd.s32 %r2, %r2, 1;\nbra loop;\n"
                           "done:\nshfl.sync.bfly.b32 %r4|%p2, %r2, 1, 31, -1;\nst.global.u32 [%rd1], %r4;";
  const auto steps = [](unsigned n) {
    unsigned count = 0;
    for (; n != 1; ++count) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    return count;
  };
  run_everywhere({body}, {.threads = 64}, [&] {
    for (unsigned i = 0; i < 64; ++i) ASSERT_EQ(data_[i], steps((i ^ 1) + 1));
  });
}

TEST_F(PtxRunTest, AtomicsOfAllThreadsCount) {
  const std::string body =
      "ld.param.u64 %rd0, [data];\natom.global.add.u32 %r0, [%rd0], 3;\nmov.u32 %r1, -5;\n"
      "atom.global.min.s32 %r2, [%rd0+4], %r1;\natom.shared.add.u32 %r3, [counter], 1;";
  run_everywhere({body, ".shared .align 4 .b8 counter[4];"}, {.threads = 100}, [&] {
    EXPECT_EQ(data_[0], 300u);
    EXPECT_EQ(data_[1], 0xfffffffbu);
  });
  const std::string wide =
      "ld.param.u64 %rd0, [data];\nmov.u64 %rd1, 0x80000001;\natom.global.add.u64 %rd2, [%rd0], %rd1;";
  run_everywhere({wide}, {.threads = 100}, [&] {
    EXPECT_EQ(data_[0], 100u);
    EXPECT_EQ(data_[1], 50u);
  });
}

TEST_F(PtxRunTest, AccessesOutsideOfMemoryNameTheLineAndTheThread) {
  const std::string failure =
      run({std::string(address_of_thread) + "add.s64 %rd1, %rd1, 4000;\nst.global.u32 [%rd1], %r0;"});
  EXPECT_NE(failure.find("is neither device memory nor pinned host memory: st.global.u32 [%rd1], %r0; at test.ptx:17, "
                         "thread (24, 0, 0) of block (0, 0, 0)"),
            std::string::npos)
      << failure;
  EXPECT_NE(run({"ld.param.u64 %rd0, [data];\nld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%rd0+4096];"}).find("neither"),
            std::string::npos);
  EXPECT_NE(run({"ld.param.u64 %rd0, [data];\nld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%rd0+8];"}).find("misaligned"),
            std::string::npos);
  EXPECT_NE(run({"ld.param.u64 %rd0, [data];\nld.global.u64 %rd1, [%rd0+4092];"}).find("misaligned"),
            std::string::npos);
  EXPECT_NE(run({"ld.param.u32 %r0, [data+8];"}).find("4 bytes at 0x8 of the parameters, which has 8"),
            std::string::npos);
}

TEST_F(PtxRunTest, SharedMemoryEndsWhereTheLaunchSaysSo) {
  const KernelText text{"mov.u32 %r0, table;\nst.shared.u32 [%r0+36], %r0;\nst.shared.u32 [48], %r0;",
                        ".shared .align 4 .b8 table[40];"};
  EXPECT_NE(run(text, {.threads = 1}).find("4 bytes at 0x30 of shared memory, which has 48"), std::string::npos)
      << run(text, {.threads = 1});
}

TEST_F(PtxRunTest, SharedMemoryIsFullOfNaNInEveryBlock) {
  const KernelText text{
      "ld.param.u64 %rd0, [data];\nld.shared.u32 %r0, [word];\nst.global.u32 [%rd0], %r0;\nst.shared.u32 [word], 7;",
      ".shared .align 4 .b8 word[4];"};
  EXPECT_EQ(run(text, {.threads = 1, .blocks = 4}), "");
  EXPECT_EQ(data_[0], 0xffffffffu);
}

// Thread t writes word t of shared memory and reads that of its neighbour.
std::string exchange_by(const std::string& barrier) {
  return std::string(address_of_thread) + "shl.b32 %r1, %r0, 2;\nst.shared.u32 [%r1], %r0;\n" + barrier +
         "xor.b32 %r2, %r1, 4;\nld.shared.u32 %r3, [%r2];\nst.global.u32 [%rd1], %r3;\n";
}
const std::string words = ".shared .align 4 .b8 words[512];";

TEST_F(PtxRunTest, ABarrierOfTheBlockOrdersItsThreads) {
  run_everywhere({exchange_by("bar.sync 0;\n"), words}, {.threads = 128}, [&] {
    for (unsigned i = 0; i < 128; ++i) ASSERT_EQ(data_[i], i ^ 1);
  });
}

TEST_F(PtxRunTest, ABarrierOfTheWarpOrdersItsLanes) {
  run_everywhere({exchange_by("bar.warp.sync -1;\n"), words}, {.threads = 128}, [&] {
    for (unsigned i = 0; i < 128; ++i) ASSERT_EQ(data_[i], i ^ 1);
  });
}

TEST_F(PtxRunTest, AMissingBarrierIsARaceEvenWhereTheResultIsRight) {
  const KernelText text{exchange_by(""), words};
  const std::string failure = run(text, {.threads = 64});
  EXPECT_NE(failure.find("race: a read of shared memory at 0x"), std::string::npos) << failure;
  EXPECT_NE(failure.find("no barrier between: ld.shared.u32 %r3, [%r2]; at test.ptx:19, thread ("), std::string::npos)
      << failure;
  EXPECT_EQ(run(text, {.threads = 64, .options = {.races = Races::ignored}}), "");
  EXPECT_EQ(data_[5], 4u);  // in lockstep
}

TEST_F(PtxRunTest, AMissingBarrierComesOutWrongInAnotherOrder) {
  const KernelText text{exchange_by(""), words};
  for (const ScheduleKind kind : {ScheduleKind::adversarial, ScheduleKind::starving}) {
    unsigned wrong = 0;
    for (unsigned seed = 1; seed <= 10; ++seed) {
      ASSERT_EQ(run(text, {.threads = 64, .options = {kind, Races::ignored}, .seed = seed}), "");
      for (unsigned i = 0; i < 64; ++i) wrong += data_[i] != (i ^ 1);
    }
    EXPECT_GT(wrong, 0u) << static_cast<int>(kind);
  }
}

TEST_F(PtxRunTest, AWriteBehindReadsOfOthersIsARace) {
  // All read word 0, then thread 0 writes it.
  const std::string body =
      "mov.u32 %r0, %tid.x;\nsetp.ne.s32 %p0, %r0, 0;\n@!%p0 st.shared.u32 [0], %r0;\nbar.sync 0;\n"
      "ld.shared.u32 %r1, [0];\n{}@!%p0 st.shared.u32 [0], %r1;";
  const auto with = [&](const std::string& barrier) { return fmt::format(fmt::runtime(body), barrier); };
  EXPECT_NE(run({with(""), words}, {.threads = 32}).find("race: a write"), std::string::npos);
  EXPECT_NE(run({with(""), words}, {.threads = 64}).find("race: a write"), std::string::npos);
  EXPECT_EQ(run({with("bar.warp.sync -1;\n"), words}, {.threads = 32}), "");
  EXPECT_NE(run({with("bar.warp.sync -1;\n"), words}, {.threads = 64}).find("race: "), std::string::npos);
  EXPECT_EQ(run({with("bar.sync 0;\n"), words}, {.threads = 64}), "");
}

TEST_F(PtxRunTest, AtomicsDoNotRaceButReadsBesideThemDo) {
  const std::string body = "atom.shared.add.u32 %r0, [words], 1;\n";
  EXPECT_EQ(run({body, words}, {.threads = 64}), "");
  EXPECT_NE(run({body + "ld.shared.u32 %r1, [words];", words}, {.threads = 64}).find("race"), std::string::npos);
  EXPECT_EQ(run({body + "bar.sync 0;\nld.shared.u32 %r1, [words];", words}, {.threads = 64}), "");
}

TEST_F(PtxRunTest, NeighboursInOneWordDoNotRace) {
  EXPECT_EQ(run({"mov.u32 %r0, %tid.x;\nshl.b32 %r1, %r0, 1;\nmov.u16 %rs0, 1;\nst.shared.u16 [%r1], %rs0;", words},
                {.threads = 64}),
            "");
}

TEST_F(PtxRunTest, RacesInGlobalMemoryAreFoundWhereAsked) {
  const RunOptions all{.races = Races::all};
  const std::string own = std::string(address_of_thread) + "st.global.u32 [%rd1], %r0;\n";
  const std::string neighbour =
      "xor.b32 %r1, %r0, 1;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd2, %rd0, %rd2;\n"
      "ld.global.u32 %r2, [%rd2];\n";
  EXPECT_EQ(run({own + neighbour}, {.threads = 64}), "");
  EXPECT_NE(run({own + neighbour}, {.threads = 64, .options = all}).find("race: a read of global memory"),
            std::string::npos);
  EXPECT_EQ(run({own + "bar.sync 0;\n" + neighbour}, {.threads = 64, .options = all}), "");
  // Nothing orders blocks: all write the same words, or one reads what another writes.
  EXPECT_NE(run({own}, {.threads = 32, .blocks = 2, .options = all}).find("of another block"), std::string::npos);
  const std::string one_writes =
      "ld.param.u64 %rd0, [data];\nmov.u32 %r0, %ctaid.x;\nsetp.ne.s32 %p0, %r0, 0;\n"
      "@%p0 ld.global.u32 %r1, [%rd0];\n@!%p0 st.global.u32 [%rd0], %r0;";
  EXPECT_NE(run({one_writes}, {.threads = 1, .blocks = 9, .options = all}).find("of another block"), std::string::npos);
  const std::string counts = "ld.param.u64 %rd0, [data];\natom.global.add.u32 %r0, [%rd0], 1;";
  EXPECT_EQ(run({counts}, {.threads = 64, .blocks = 3, .options = all}), "");
}

// Each thread writes a word of its block; thread 0 counts blocks in word 512, and threads of the last of them read what
// another block has written.
std::string last_block(const std::string& before, const std::string& behind, const std::string& barrier) {
  return "ld.param.u64 %rd0, [data];\nmov.u32 %r0, %tid.x;\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %nctaid.x;\n"
         "mov.u32 %r3, %ntid.x;\nmad.lo.s32 %r4, %r1, %r3, %r0;\nmul.wide.u32 %rd1, %r4, 4;\n"
         "add.s64 %rd1, %rd0, %rd1;\nadd.s32 %r5, %r4, 7;\nst.global.u32 [%rd1], %r5;\nbar.sync 0;\n"
         "setp.ne.s32 %p0, %r0, 0;\n@%p0 bra counted;\n" +
         before + "atom.global.add.u32 %r6, [%rd0+2048], 1;\n" + behind + "st.shared.u32 [0], %r6;\ncounted:\n" +
         barrier +
         "ld.shared.u32 %r7, [0];\nadd.s32 %r7, %r7, 1;\nsetp.ne.s32 %p1, %r7, %r2;\n@%p1 bra done;\n"
         "xor.b32 %r1, %r1, 1;\nmad.lo.s32 %r4, %r1, %r3, %r0;\nmul.wide.u32 %rd1, %r4, 4;\nadd.s64 %rd1, %rd0, %rd1;\n"
         "ld.global.u32 %r8, [%rd1];\nst.global.u32 [%rd1+1024], %r8;\ndone:\n";
}

TEST_F(PtxRunTest, TheLastBlockSeesWhatOthersHaveDoneBehindFencesAndABarrier) {
  const std::string fence = "membar.gl;\n", barrier = "bar.sync 0;\n";
  const Launch setup{.threads = 64, .blocks = 4, .options = {.races = Races::all}};
  run_everywhere({last_block(fence, fence, barrier), words}, setup, [&] {
    unsigned seen = 0;
    for (unsigned i = 0; i < 256; ++i) seen += data_[256 + i] == i + 7 ? 1 : 0;
    ASSERT_EQ(seen, 64u);
  });
  const auto failure = [&](const std::string& text) {
    data_.fill(0);
    return run({text, words}, setup);
  };
  EXPECT_NE(failure(last_block("", fence, barrier)).find("of another block"), std::string::npos);
  EXPECT_NE(failure(last_block(fence, "", barrier)).find("of another block"), std::string::npos);
  EXPECT_NE(failure(last_block(fence, fence, "")).find("race"), std::string::npos);
}

TEST_F(PtxRunTest, DivergentBarriersAreFailures) {
  const std::string half = "mov.u32 %r0, %tid.x;\nsetp.lt.s32 %p0, %r0, 16;\n";
  EXPECT_NE(run({half + "@%p0 bra skip;\nbar.sync 0;\nskip:\n"})
                .find("some threads wait, others have exited: bar.sync "
                      "0; at test.ptx:15, thread (16, 0, 0)"),
            std::string::npos);
  EXPECT_NE(run({half + "@%p0 bra other;\nbar.sync 0;\nret;\nother:\nbar.sync 0;\n"}).find("others wait at test.ptx:"),
            std::string::npos);
  EXPECT_NE(run({half + "@%p0 bar.sync 0;"}).find("a barrier for some lanes only"), std::string::npos);
  EXPECT_NE(run({half + "@%p0 bra other;\nbar.warp.sync -1;\nret;\nother:\nbar.sync 0;\n"}).find("divergent barrier"),
            std::string::npos);
  EXPECT_NE(run({half + "@%p0 bra other;\nbar.warp.sync -1;\nret;\nother:\nbar.warp.sync -1;\n"})
                .find("lanes of a warp wait at two places"),
            std::string::npos);
  EXPECT_NE(run({"bar.sync 1;"}).find("a barrier other than 0"), std::string::npos);
}

TEST_F(PtxRunTest, AShuffleFromALaneThatTakesNoPartIsAFailure) {
  const std::string half = "mov.u32 %r0, %tid.x;\nsetp.lt.s32 %p0, %r0, 16;\n@!%p0 bra skip;\n";
  EXPECT_EQ(run({half + "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xffff;\nskip:\n"}), "");
  EXPECT_NE(run({half + "shfl.sync.bfly.b32 %r1, %r0, 16, 31, 0xffff;\nskip:\n"}).find("takes no part"),
            std::string::npos);
  EXPECT_NE(run({half + "shfl.sync.bfly.b32 %r1, %r0, 1, 31, 0xff00;\nskip:\n"}).find("mask of lanes"),
            std::string::npos);
}

TEST_F(PtxRunTest, ShufflesAndVotesGoByTheManual) {
  struct Case {
    std::string how;
    std::function<unsigned(unsigned)> from;
  };
  const Case cases[] = {
      {"shfl.sync.up.b32 %r1|%p1, %r0, 3, 0, -1", [](unsigned l) { return l < 3 ? l : l - 3; }},
      {"shfl.sync.down.b32 %r1|%p1, %r0, 3, 31, -1", [](unsigned l) { return l + 3 > 31 ? l : l + 3; }},
      {"shfl.sync.bfly.b32 %r1|%p1, %r0, 5, 31, -1", [](unsigned l) { return l ^ 5; }},
      {"shfl.sync.idx.b32 %r1|%p1, %r0, 7, 31, -1", [](unsigned) { return 7u; }},
      // Segments of 8: 8 * (32 - 8) << 5 is what __shfl_sync passes for a width of 8.
      {"shfl.sync.idx.b32 %r1|%p1, %r0, 2, 0x181f, -1", [](unsigned l) { return l / 8 * 8 + 2; }},
      {"shfl.sync.up.b32 %r1|%p1, %r0, 1, 0x1800, -1", [](unsigned l) { return l % 8 == 0 ? l : l - 1; }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.how);
    run_everywhere({std::string(address_of_thread) + each.how + ";\nst.global.u32 [%rd1], %r1;"}, {}, [&] {
      for (unsigned lane = 0; lane < 32; ++lane) ASSERT_EQ(data_[lane], each.from(lane)) << lane;
    });
  }
  run_everywhere({std::string(address_of_thread) +
                  "and.b32 %r2, %r0, 3;\nsetp.eq.s32 %p0, %r2, 1;\nvote.sync.ballot.b32 %r1, %p0, -1;\n"
                  "st.global.u32 [%rd1], %r1;"},
                 {.threads = 40}, [&] {
                   EXPECT_EQ(data_[31], 0x22222222u);
                   EXPECT_EQ(data_[39], 0x22u);  // of the 8 lanes that there are
                 });
}

TEST_F(PtxRunTest, LoadsExtendByTheSignOfTheirTypeAndStoresCut) {
  data_[0] = 0x80ff7f81;
  ASSERT_EQ(run({"ld.param.u64 %rd0, [data];\nld.global.s8 %r0, [%rd0];\nld.global.u8 %r1, [%rd0];\n"
                 "ld.global.s16 %r2, [%rd0+2];\nld.global.u16 %r3, [%rd0+2];\nld.global.s32 %rd1, [%rd0];\n"
                 "st.global.v4.u32 [%rd0+16], {%r0, %r1, %r2, %r3};\nst.global.u64 [%rd0+32], %rd1;\n"
                 "st.global.u8 [%rd0+40], %r2;\nst.global.u16 [%rd0+42], %rs0;",
                 ""},
                {.threads = 1}),
            "");
  EXPECT_EQ(data_[4], 0xffffff81u);
  EXPECT_EQ(data_[5], 0x81u);
  EXPECT_EQ(data_[6], 0xffff80ffu);
  EXPECT_EQ(data_[7], 0x80ffu);
  EXPECT_EQ(data_[8], 0x80ff7f81u);
  EXPECT_EQ(data_[9], 0xffffffffu);
  EXPECT_EQ(data_[10] & 0xffff, 0xffu);
}

TEST_F(PtxRunTest, MoreThreadsThanTheKernelAllowsAreAFailure) {
  const Module module("test.ptx", ".version 9.0\n.entry kernel()\n.maxntid 32, 1, 1\n{ ret; }\n");
  std::mt19937_64 random(1);
  const RunResult result = run_kernel(module, module.kernel("kernel"), {{1}, {64}, 0}, {}, {}, {}, random);
  EXPECT_EQ(result.failure, "64 threads in a block, 32 at most");
}

}  // namespace
}  // namespace hayloft::simt::ptx
