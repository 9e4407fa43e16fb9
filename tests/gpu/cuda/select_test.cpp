#include <algorithm>
#include <cstdint>

#include "tests/gpu/cuda/select_fixture.h"

// Tests what is selected for every group, shape, format and limit.
namespace hayloft::testing {
namespace {

// 97 chunks of the store and two of the tail: threads of every warp of four have some, and those of the tail are the
// last one's. Keys are small, so that all positions have about the same share.
TEST_F(CudaSelect, AlphaHasTheMassOfEveryChunkOfALongStoreAndOfTheTail) {
  expect_like_cpu({.cache = {.head_dim = 16, .block_tokens = 4096, .stored = 97 * 256, .tail = 300, .key_scale = 0.05f},
                   .group = 2,
                   .rank = 4});
}

TEST_F(CudaSelect, SparqSelectsWhatTheCpuSelectsForEveryGroupAndRule) {
  for (int group = 1; group <= 17; ++group) {
    for (const GroupRule rule : {GroupRule::softmax, GroupRule::logits}) {
      expect_like_cpu({{.kv_heads = 2, .head_dim = 32, .stored = 700, .tail = 30, .seed = 3}, group, 8, 40, 690, rule});
    }
  }
}

TEST_F(CudaSelect, SparqDividesByTheTemperatureAskedFor) {
  for (const auto temperature : {index::Temperature::head_dim, index::Temperature::rank}) {
    SelectCase c{{.kv_heads = 2, .head_dim = 64, .stored = 600, .tail = 30, .seed = 8}, 4, 12, 40};
    c.temperature = temperature;
    expect_like_cpu(c);
  }
}

TEST_F(CudaSelect, SparqSelectsWhatTheCpuSelectsForEveryHeadDimensionAndRank) {
  for (const int d : {8, 64, 80, 96, 128, 256, 264, 512}) {
    for (const int rank : {1, 5, 16, d}) {
      if (rank <= d) expect_like_cpu({{.head_dim = d, .stored = 300, .tail = 5, .seed = 4}, 2, rank, 25});
    }
  }
}

TEST_F(CudaSelect, SparqReadsEveryColumnFormatInBlocksOfEverySize) {
  for (const ColumnFormat columns : all_formats) {
    for (const int block : {16, 32, 64, 512, 4096}) {
      for (const std::int64_t stored : {1, 999, 1024}) {
        const CacheShape cache{
            .kv_heads = 2, .head_dim = 16, .block_tokens = block, .stored = stored, .tail = 9, .columns = columns};
        expect_like_cpu({cache, 4, 5, static_cast<int>(std::min<std::int64_t>(stored, 33))});
      }
    }
  }
}

TEST_F(CudaSelect, SparqScoresEveryGroupInEveryColumnFormat) {
  for (const ColumnFormat columns : all_formats) {
    if (!is_scaled(columns)) continue;
    for (int group = 1; group <= 16; ++group) {
      expect_like_cpu({{.head_dim = 24, .block_tokens = 256, .stored = 700, .seed = 5, .columns = columns}, group, 11});
    }
  }
}

TEST_F(CudaSelect, SparqScoresEveryComponentOfEveryHeadDimensionInEveryColumnFormat) {
  for (const ColumnFormat columns : all_formats) {
    for (const int d : {64, 80, 96, 128, 256, 512}) {
      const int rank = std::min(d, 440);  // whose tables fit a block of every card
      expect_like_cpu({{.head_dim = d, .block_tokens = 128, .stored = 300, .tail = 5, .seed = 20, .columns = columns},
                       2,
                       rank,
                       25});
    }
  }
}

TEST_F(CudaSelect, SparqScoresSixteenHeadsByAllOf256ComponentsWithTheirScales) {
  // The most that a block of the scan keeps in shared memory: 256 (16 * 4 + 4 + 128) bytes, beyond the 48 KiB that a
  // kernel has without asking.
  for (const ColumnFormat columns : all_formats) {
    if (!is_scaled(columns)) continue;
    expect_like_cpu({{.head_dim = 256, .block_tokens = 256, .stored = 300, .seed = 21, .columns = columns}, 16, 256});
  }
}

TEST_F(CudaSelect, SparqSelectsAnyNumberOfPositionsBelowAnyLimit) {
  for (const std::int64_t limit : {0, 1, 255, 256, 500, 777}) {
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, limit / 2, limit}) {
      if (k <= limit) {
        expect_like_cpu({{.head_dim = 16, .stored = 777, .tail = 300, .seed = 6}, 4, 6, static_cast<int>(k), limit});
      }
    }
  }
}

TEST_F(CudaSelect, SparqHoldsForManySeeds) {
  for (std::uint32_t seed = 10; seed < 20; ++seed) {
    expect_like_cpu({{.head_dim = 32, .block_tokens = 128, .stored = 1500, .tail = 70, .seed = seed}, 4, 8, 150});
  }
}

TEST_F(CudaSelect, SparqWithoutATailCountsTheStoreAlone) {
  expect_like_cpu({{.kv_heads = 3, .head_dim = 16, .stored = 640, .seed = 7}, 4, 4, 64, 500});
}

TEST_F(CudaSelect, LogitsFarApartSelectTheSameAsWell) {
  // Softmaxes that underflow nearly everywhere: the scale that a group shares must keep the best apart.
  expect_like_cpu({{.head_dim = 32, .stored = 600, .tail = 40, .seed = 8, .key_scale = 20}, 4, 16, 2});
}

}  // namespace
}  // namespace hayloft::testing
