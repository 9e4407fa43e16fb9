#include <algorithm>
#include <filesystem>

#include "runtime/context/ingest.h"
#include "runtime/eval/needle/haystack.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/support/temporary_folder.h"

// Saved contexts go from one backend to the other.
namespace hayloft::testing {
namespace {

std::filesystem::path needle_model() {
  const char* bundled = std::getenv("HAYLOFT_NEEDLE_MODEL");
  return bundled ? std::filesystem::path(bundled)
                 : std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
}

class SavedContextOnCuda : public CudaTest {
 protected:
  // A backend that computes, with a store and a model of its own.
  struct Side {
    Side(gpu::Backend& backend, std::shared_ptr<offload::ChunkListener> listener)
        : arena(topology, {.budget_bytes = 64 << 20, .chunk_bytes = 1 << 20, .listener = std::move(listener)}),
          tokenizer(needle_model()),
          model(needle_model(), backend) {}

    runtime::ModelSource source() const { return {model, tokenizer, needle_model()}; }

    // The logits behind a question that is read token by token.
    std::vector<float> answer(const std::filesystem::path& context) {
      const offload::Snapshot snapshot = offload::Snapshot::open(context);
      runtime::Session session = runtime::open_context(source(), arena, snapshot, {});
      std::vector<float> logits;
      for (const std::int32_t token : tokenizer.encode(" magic", false)) logits = session.step(token);
      return logits;
    }

    offload::Topology topology;
    offload::Arena arena;
    runtime::Tokenizer tokenizer;
    runtime::Model model;
  };

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    on_cpu.emplace(*cpu, nullptr);
    on_cuda.emplace(*cuda, cuda->pinning());
    options.session.cache.block_tokens = 16;
    options.session.cache.window = 8;
    options.session.chunk_tokens = 24;
    const auto grammar = runtime::eval::make_grammar(1);
    for (int i = 0; i < 6; ++i) text += grammar->next() + " ";
  }

  // The file is the same for both; behind its last chunk a few tokens are read by each itself, on CUDA with activations
  // rounded to f16, which is 2^-11 of each at every layer.
  void expect_same_answers(const std::filesystem::path& context) {
    const std::vector<float> expected = on_cpu->answer(context);
    const std::vector<float> found = on_cuda->answer(context);
    float largest = 0;
    for (const float x : expected) largest = std::max(largest, std::fabs(x));
    EXPECT_TRUE(near(found, expected, 0x1p-7 * largest));
    EXPECT_EQ(std::max_element(found.begin(), found.end()) - found.begin(),
              std::max_element(expected.begin(), expected.end()) - expected.begin());
  }

  test::TemporaryFolder folder;
  std::optional<Side> on_cpu;
  std::optional<Side> on_cuda;
  runtime::IngestOptions options;
  std::string text;
};

TEST_F(SavedContextOnCuda, OneThatTheCpuMadeGivesTheSameAnswers) {
  const std::filesystem::path path = folder.path() / "cpu.hay";
  runtime::ingest(on_cpu->source(), on_cpu->arena, text, path, options);
  expect_same_answers(path);
}

TEST_F(SavedContextOnCuda, OneThatItMadeGivesTheSameAnswersOnTheCpu) {
  const std::filesystem::path path = folder.path() / "cuda.hay";
  runtime::ingest(on_cuda->source(), on_cuda->arena, text, path, options);
  expect_same_answers(path);
}

TEST_F(SavedContextOnCuda, ResumedAndMadeInOneGoItIsTheSameToTheBit) {
  const auto digest = [](const std::filesystem::path& path) { return offload::Snapshot::open(path).content_digest(); };
  const std::filesystem::path whole = folder.path() / "whole.hay";
  runtime::ingest(on_cuda->source(), on_cuda->arena, text, whole, options);
  const std::filesystem::path resumed = folder.path() / "resumed.hay";
  options.checkpoint_seconds = 0;
  struct Stopped {};
  int chunks = 0;
  EXPECT_THROW(runtime::ingest(on_cuda->source(), on_cuda->arena, text, resumed, options,
                               [&](std::int64_t, std::int64_t) {
                                 if (++chunks == 3) throw Stopped();
                               }),
               Stopped);
  const runtime::IngestResult result = runtime::ingest(on_cuda->source(), on_cuda->arena, text, resumed, options);
  EXPECT_GT(result.resumed_from, 0);
  EXPECT_EQ(digest(resumed), digest(whole));
}

}  // namespace
}  // namespace hayloft::testing
