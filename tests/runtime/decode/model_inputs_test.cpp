// A trained model of somebody else's, with what another program (llama2.c) made of it. Needs the folder that
// HAYLOFT_TEST_DATA names; skipped without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gpu/make_backend.h"
#include "runtime/decode/session.h"

namespace hayloft::runtime {
namespace {

constexpr std::int32_t begin_of_text = 1;

template <class T>
std::vector<T> read_array(const std::filesystem::path& path) {
  std::vector<T> values(std::filesystem::file_size(path) / sizeof(T));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

class Stories260K : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("HAYLOFT_TEST_DATA");
    if (!data) GTEST_SKIP() << "HAYLOFT_TEST_DATA is not set; it names the folder that holds stories260K";
    folder = std::filesystem::path(data) / "stories260K";
    model = std::make_unique<Model>(folder, *backend);
  }

  Session session(int chunk_tokens) {
    return Session(*model, arena, {.cache = {.block_tokens = 32, .window = 16}, .chunk_tokens = chunk_tokens});
  }

  // The distance that logits may lie from a recording in f32 throughout. K and V are rounded to f16 here, off by at
  // most 2^-11 of themselves; `largest` and `rms` are what the same rounding does to these very logits in Hugging Face
  // transformers. A quarter more is left for values on a tie, and 1e-4 for f32 sums taken in another order:
  // transformers without the rounding lies 2.4e-5 from the recordings.
  static void expect_recorded(std::span<const float> logits, std::span<const float> recorded, double largest,
                              double rms) {
    ASSERT_EQ(logits.size(), recorded.size());
    double sum = 0;
    double most = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double error = std::fabs(logits[i] - recorded[i]);
      ASSERT_FALSE(std::isnan(error)) << "at " << i;
      sum += error * error;
      most = std::max(most, error);
    }
    EXPECT_LE(most, 1.25 * largest + 1e-4);
    EXPECT_LE(std::sqrt(sum / static_cast<double>(logits.size())), 1.25 * rms + 1e-4);
  }

  std::filesystem::path folder;
  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 64 << 20}};
  std::unique_ptr<Model> model;
};

TEST_F(Stories260K, TellsTheRecordedStory) {
  const auto tokens = read_array<std::int32_t>(folder / "greedy200_tokens.i32");
  const auto recorded = read_array<float>(folder / "greedy200_logits.f32");
  ASSERT_EQ(tokens.size(), 200u);
  Session telling = session(1);
  std::vector<std::int32_t> told = {begin_of_text};
  std::vector<float> logits;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const std::vector<float> step = telling.step(told.back());
    logits.insert(logits.end(), step.begin(), step.end());
    told.push_back(static_cast<std::int32_t>(std::max_element(step.begin(), step.end()) - step.begin()));
  }
  told.pop_back();  // the recording ends with the logits of its last token
  EXPECT_EQ(told, tokens);
  expect_recorded(logits, recorded, 0.0233, 0.00285);
}

TEST_F(Stories260K, ReadsAStoryAsRecorded) {
  const auto tokens = read_array<std::int32_t>(folder / "text512_tokens.i32");
  const auto recorded = read_array<float>(folder / "text512_logits.f32");
  ASSERT_EQ(tokens.size(), 512u);
  for (const int chunk : {512, 100}) {
    SCOPED_TRACE(chunk);
    expect_recorded(session(chunk).score(tokens), recorded, 0.0569, 0.00477);
  }
}

}  // namespace
}  // namespace hayloft::runtime
