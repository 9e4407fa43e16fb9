#include "tests/runtime/decode/verify_walk.h"

#include <filesystem>
#include <optional>

#include "tests/gpu/cuda/backends.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/temporary_folder.h"

// Passes of exact attention that verify several tokens on a device.
namespace hayloft::testing {
namespace {

class VerifyOnCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    options.cache.block_tokens = 16;
    options.cache.window = 8;
    options.chunk_tokens = 24;
    memory.budget_bytes = std::uint64_t{64} << 20;
    memory.chunk_bytes = std::uint64_t{1} << 20;
    memory.listener = cuda->pinning();
    arena.emplace(topology, memory);
  }
  void expect_as_single_steps(const std::filesystem::path& model, std::uint32_t seed,
                              runtime::WeightForm form = runtime::WeightForm::stored) {
    const runtime::Model of(model, *cuda, form);
    runtime::expect_as_single_steps(of, *arena, options, seed, 16, 60);
  }

  runtime::SessionOptions options;
  offload::ArenaOptions memory;
  offload::Topology topology;
  std::optional<offload::Arena> arena;
};

TEST_F(VerifyOnCuda, APassIsItsSingleStepsToTheBitWithWindowsAndExperts) {
  for (const char* model : {"llama", "gemma3", "qwen3_moe"}) {
    SCOPED_TRACE(model);
    ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(golden_models() / model, 11));
  }
}

TEST_F(VerifyOnCuda, APassIsItsSingleStepsToTheBitWithRecurrentLayers) {
  test::TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(test::write_hybrid_model(folder.path() / "model", {.layers = 4}), 1));
}

TEST_F(VerifyOnCuda, TheModelsHeadDraftsAsOnTheProcessor) {
  test::TemporaryFolder folder;
  for (const int experts : {0, 4}) {
    const auto path =
        test::write_hybrid_model(folder.path() / std::to_string(experts), {.head = true, .experts = experts});
    const std::vector<std::int32_t> prompt = {5, 99, 1234, 7, 7, 300, 42, 4000, 17, 2, 88, 501};
    std::vector<std::int32_t> drafts[2];
    for (gpu::Backend* const backend : {cuda.get(), cpu.get()}) {
      const runtime::Model of(path, *backend, runtime::WeightForm::stored, {}, runtime::ExpertPlace::automatic, true);
      runtime::Session session(of, *arena, options);
      session.append(prompt);
      session.verify(std::vector<std::int32_t>{3, 9}, [](const float*, int) { return 1; });
      drafts[backend == cpu.get() ? 1 : 0] = session.draft_by_head(11, runtime::Sampler({}), 4);
    }
    EXPECT_EQ(drafts[0].size(), 4U);
    EXPECT_EQ(drafts[0], drafts[1]);
  }
}

TEST_F(VerifyOnCuda, APassIsItsSingleStepsToTheBitWithRowsOfIntegersAndPackedWeights) {
  for (const offload::RowFormat rows : {offload::RowFormat::int8, offload::RowFormat::int4}) {
    options.cache.rows = rows;
    ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(golden_models() / "llama", 4));
  }
  for (const runtime::WeightForm form : {runtime::WeightForm::q8, runtime::WeightForm::q4}) {
    ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(golden_models() / "llama", 6, form));
  }
}

TEST_F(VerifyOnCuda, APassIsItsSingleStepsToTheBitInPageableMemory) {
  memory.listener = nullptr;
  arena.emplace(topology, memory);
  ASSERT_NO_FATAL_FAILURE(expect_as_single_steps(golden_models() / "llama", 5));
}

// Queries at the newest positions of one cache, each of which sees the positions up to its own.
TEST_F(VerifyOnCuda, StepsBehindOneStoreBringItsRowsOnce) {
  constexpr int steps = 5, query_heads = 4, head_dim = 64;
  for (const SharedCache::Host host : {SharedCache::Host::pinned, SharedCache::Host::pageable}) {
    for (const offload::RowFormat rows : {offload::RowFormat::f16, offload::RowFormat::int8}) {
      SharedCache cache(
          *cuda, {.kv_heads = 2, .head_dim = head_dim, .block_tokens = 64, .stored = 320, .tail = 40, .rows = rows},
          host);
      const gpu::Buffer q = upload(*cuda, random_query(steps * query_heads, head_dim, 3));
      const auto bytes = static_cast<std::uint64_t>(steps * query_heads * head_dim) * sizeof(float);
      const gpu::Buffer together = cuda->allocate(bytes, cuda->stream());
      const gpu::Buffer alone = cuda->allocate(bytes, cuda->stream());
      const auto with_outputs = [&](const gpu::Buffer& out) {
        std::vector<gpu::AttendStep> all;
        for (int i = 0; i < steps; ++i) {
          gpu::CacheView view = cache.on_cuda();
          view.tail.tokens -= steps - 1 - i;
          gpu::Attended what;
          what.ranges[0] = {0, view.tokens()};
          const int at = i * query_heads * head_dim;
          all.push_back({view, q.as<float>() + at, what, out.as<float>() + at});
        }
        return all;
      };
      const auto streams = [&] {
        int times = 0;
        for (const gpu::StageTime& stage : cuda->stage_times()) times += stage.name == "dense stream" ? stage.times : 0;
        return times;
      };
      cuda->time_stages(true);
      for (const gpu::AttendStep& step : with_outputs(alone)) {
        cuda->attend(step.cache, step.q, query_heads, step.what, step.out, cuda->stream());
      }
      ASSERT_EQ(streams(), steps);
      cuda->time_stages(false);
      cuda->time_stages(true);
      cuda->attend_together(with_outputs(together), query_heads, cuda->stream());
      EXPECT_EQ(streams(), 1);
      cuda->time_stages(false);
      EXPECT_EQ(download<float>(*cuda, together), download<float>(*cuda, alone));
    }
  }
}

}  // namespace
}  // namespace hayloft::testing
