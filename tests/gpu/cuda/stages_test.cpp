#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gpu/cuda/backends.h"

// Backend::stage_times(): what a benchmark learns about the parts of a operation.
namespace hayloft::testing {
namespace {

TEST(Stages, AreTimedWhileSomebodyAsks) {
  if (const std::string why = no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  const auto cuda = make_cuda();
  SharedCache cache(*cuda, {.kv_heads = 1, .head_dim = 64, .block_tokens = 64, .stored = 128, .tail = 8});
  const gpu::Buffer q = upload(*cuda, random_query(2, 64, 1));
  const gpu::Buffer positions = cuda->allocate(4 * sizeof(std::int32_t), cuda->stream());
  const gpu::Buffer alpha = cuda->allocate(2 * sizeof(float), cuda->stream());
  const auto select = [&] {
    cuda->select_sparq(cache.on_cuda(), q.as<float>(), 2, {{.rank = 8}, 4, 128}, positions.as<std::int32_t>(),
                       alpha.as<float>(), cuda->stream());
  };
  select();
  EXPECT_TRUE(cuda->stage_times().empty()) << "nobody asked";
  cuda->time_stages(true);
  select();
  select();
  const std::vector<gpu::StageTime> stages = cuda->stage_times();
  const auto scan = std::find_if(stages.begin(), stages.end(), [](const auto& s) { return s.name == "column scan"; });
  ASSERT_NE(scan, stages.end());
  EXPECT_EQ(scan->times, 2);
  cuda->time_stages(false);
  EXPECT_TRUE(cuda->stage_times().empty());
}

}  // namespace
}  // namespace hayloft::testing
