#include <fmt/format.h>

#include <algorithm>

#include "tests/gpu/cuda/backends.h"
#include "tests/support/method_fixture.h"

// Steps on CUDA whose rest is estimated by scores, against the CPU.
namespace hayloft::testing {
namespace {

using offload::ColumnFormat;
using offload::RowFormat;

class RestOnCuda : public MethodTest {
 protected:
  void SetUp() override {
    if (const std::string why = no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
    cuda = make_cuda({.memory_bytes = std::uint64_t{1} << 30});
  }

  void make(const CacheShape& shape, int group, bool pinned = true) {
    cache.emplace(shape, pinned ? cuda->pinning() : nullptr);
    query_heads = group * shape.kv_heads;
    q = normal(static_cast<std::size_t>(query_heads * shape.head_dim), shape.seed + 50, 2);
    tail = upload(*cuda, cache->tail_rows());
  }

  Output attend_on_cuda(const std::string& text) {
    const auto by = method(text);
    gpu::CacheView view = cache->view();
    view.tail.rows = tail.as<f16>();
    Output output;
    const gpu::Buffer queries = upload(*cuda, q);
    const gpu::Buffer out = cuda->allocate(queries.bytes(), cuda->stream());
    runtime::MethodScratch scratch;
    const offload::Store none(arena, {1, view.kv_heads, view.head_dim, 64});
    const auto state = by->make_state({1, query_heads, view.kv_heads, view.head_dim}, *cuda);
    if (state) state->sync_with_cache({&view, 1}, {});
    const runtime::LayerStep at{*cuda, cuda->stream(), 0, view, none, query_heads, 1, scratch};
    output.counters = by->attend({at, queries.as<float>(), out.as<float>(), *runtime::local_attender(), state.get(),
                                  &output.trace, nullptr, &output.estimate});
    output.y = download<float>(*cuda, out);
    return output;
  }

  // Scores of some tens of products and lines through them are off by 1e-5: masses by 1e-4 of themselves, and what is
  // made of them by that much of values below 5. A draw of another position would be off by percents. Where rows are
  // integers the CPU's lines go through scores of these rows, and the device's through those of the columns, which is
  // further: of int4 the keys differ by 1/14 of a range in some of 60 places of the fit.
  void expect_like_cpu(const std::string& text) {
    const double tolerance = cache->shape().rows == RowFormat::f16 ? 1e-3 : 1e-2;
    SCOPED_TRACE(text);
    const Output expected = attend(text);
    const Output actual = attend_on_cuda(text);
    ASSERT_EQ(actual.trace.positions, expected.trace.positions);
    EXPECT_EQ(actual.counters.bytes, expected.counters.bytes);
    for (std::size_t i = 0; i < expected.y.size(); ++i) ASSERT_NEAR(actual.y[i], expected.y[i], tolerance) << i;
    ASSERT_EQ(actual.estimate.error.size(), expected.estimate.error.size());
    for (std::size_t h = 0; h < expected.estimate.error.size(); ++h) {
      EXPECT_NEAR(actual.estimate.error[h], expected.estimate.error[h],
                  10 * tolerance * expected.estimate.error[h] + 1e-6)
          << h;
      EXPECT_NEAR(actual.estimate.attended[h], expected.estimate.attended[h], tolerance) << h;
      EXPECT_NEAR(actual.trace.alpha[h], expected.trace.alpha[h], tolerance) << h;
    }
    EXPECT_EQ(attend_on_cuda(text).y, actual.y) << "the same at every run";
  }

  std::unique_ptr<gpu::Backend> cuda;
  gpu::Buffer tail;
};

TEST_F(RestOnCuda, IsThatOfTheCpu) {
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::planes}) {
    for (const int group : {1, 3}) {
      make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 9 * 64, .tail = 100, .columns = columns},
           group);
      const std::string ranking = columns == ColumnFormat::planes ? "planes:bits=40:k=60" : "sparq:r=8:k=60";
      for (const char* const rest : {"draw:seed=1", "draw:seed=2", "calibrated"}) {
        expect_like_cpu(ranking + ":rest=" + rest);
      }
      expect_like_cpu(ranking + ":group=logits:window=0:rest=draw");
    }
  }
}

TEST_F(RestOnCuda, HeadsOf512ComponentsHaveItToo) {
  for (const ColumnFormat columns : {ColumnFormat::f16, ColumnFormat::planes}) {
    make({.kv_heads = 1, .head_dim = 512, .block_tokens = 64, .stored = 5 * 64, .tail = 70, .columns = columns}, 2);
    const std::string ranking = columns == ColumnFormat::planes ? "planes:bits=640:k=40" : "sparq:r=128:k=40";
    for (const char* const rest : {"draw", "calibrated"}) expect_like_cpu(ranking + ":rest=" + rest);
  }
}

TEST_F(RestOnCuda, RowsOfEveryFormatAreReadWhereverTheyLie) {
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8, RowFormat::int4}) {
    for (const bool pinned : {true, false}) {
      make({.kv_heads = 2, .head_dim = 64, .block_tokens = 64, .stored = 5 * 64, .tail = 70, .rows = rows}, 2, pinned);
      expect_like_cpu("sparq:r=8:k=60:rest=draw");
    }
  }
}

TEST_F(RestOnCuda, ManyChunksAndLongTails) {
  make({.kv_heads = 1, .head_dim = 32, .block_tokens = 512, .stored = 6 * 512, .tail = 700}, 2);
  expect_like_cpu("sparq:r=8:k=200:rest=draw");
  expect_like_cpu("sparq:r=8:k=1000:window=900:rest=calibrated");
}

TEST_F(RestOnCuda, WhatIsDrawnMayBeEverythingOrNothing) {
  make({.kv_heads = 1, .head_dim = 16, .block_tokens = 64, .stored = 128, .tail = 10}, 2);
  for (const char* const text : {"sparq:r=4:k=1:window=0:rest=draw", "sparq:r=4:k=8:window=8:rest=draw",
                                 "sparq:r=16:k=86:window=0:rest=draw", "sparq:r=4:k=1000:rest=draw"}) {
    expect_like_cpu(text);
  }
}

TEST_F(RestOnCuda, MethodsThatRankNearTheMemoryEstimateThere) {
  make({.kv_heads = 2, .head_dim = 32, .block_tokens = 64, .stored = 5 * 64, .tail = 70}, 2);
  for (const char* const text : {"topk:k=40:rest=draw", "oracle:k=40:rest=calibrated", "lowrank:r=8:k=40:rest=draw"}) {
    expect_like_cpu(text);
  }
}

}  // namespace
}  // namespace hayloft::testing
