#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "offload/error.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/eval/needle/haystack.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// The memory that hayloft plan predicts beside the most that a real run had resident.
namespace hayloft {
namespace {

using test::Outcome;
using test::Program;
using test::run_program;

const std::string needle_model = std::string(HAYLOFT_SOURCE_DIR) + "/examples/needle-model/model";

TEST(PlannedMemory, IsWithin5PercentOfThePeakOfANeedleRun) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has memory of its own";
#endif
  for (const char* context : {"64k", "256k"}) {
    const std::vector<std::string> common{"--ctx-size", context, "--attn", "dense,sparq", "--threads", "2"};
    std::vector<std::string> plan{"plan", "-m", needle_model, "--json", "-"};
    plan.insert(plan.end(), common.begin(), common.end());
    const Outcome planned = run_program(plan);
    ASSERT_EQ(planned.exit_code, 0) << planned.err;
    const double predicted = nlohmann::json::parse(planned.out)["plans"][0]["bytes"]["total"];

    std::vector<std::string> needle{"needle", "-m", needle_model, "--depths", "3"};
    needle.insert(needle.end(), common.begin(), common.end());
    const Outcome run = Program(needle).wait();
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_NEAR(predicted / static_cast<double>(run.peak_bytes), 1, 0.05)
        << context << ": " << predicted << " predicted, " << run.peak_bytes << " at the peak";
    fmt::print("{}: {:.1f} MiB predicted, {:.1f} MiB at the peak, ratio {:.3f}\n", context, predicted / (1 << 20),
               static_cast<double>(run.peak_bytes) / (1 << 20), predicted / static_cast<double>(run.peak_bytes));
  }
}

// Columns are chosen, and the text ends within a chunk. Its rows are then short beside what choosing takes, or not.
TEST(PlannedMemory, IsWithin5PercentOfThePeakOfAnIngest) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has memory of its own";
#endif
  test::TemporaryFolder folder;
  const auto grammar = runtime::eval::make_grammar(5);
  for (const std::size_t bytes : {12000, 50000}) {
    std::string text;
    while (text.size() < bytes) text += grammar->next() + " ";
    folder.write("text.txt", text);
    for (const char* block : {"64", "4096"}) {
      const std::vector<std::string> common{"-m", needle_model, "--block-tokens", block, "--threads", "2"};
      const auto saved = folder.path() / fmt::format("{}-{}.hay", bytes, block);
      std::vector<std::string> ingest{"ingest", "-f", folder / "text.txt", "--save", saved};
      ingest.insert(ingest.end(), common.begin(), common.end());
      const Outcome run = Program(ingest).wait();
      ASSERT_EQ(run.exit_code, 0) << run.err;
      const std::int64_t tokens = offload::Snapshot::open(saved).token_count();
      std::vector<std::string> plan{"plan", "--json", "-", "--ctx-size", std::to_string(tokens)};
      plan.insert(plan.end(), common.begin(), common.end());
      const Outcome planned = run_program(plan);
      ASSERT_EQ(planned.exit_code, 0) << planned.err;
      const double predicted = nlohmann::json::parse(planned.out)["plans"][0]["bytes"]["total_when_saved"];
      EXPECT_NEAR(predicted / static_cast<double>(run.peak_bytes), 1, 0.05)
          << tokens << ": " << predicted << " predicted, " << run.peak_bytes << " at the peak";
      fmt::print("{} tokens in blocks of {}: {:.1f} MiB predicted, ratio {:.3f}\n", tokens, block,
                 predicted / (1 << 20), predicted / static_cast<double>(run.peak_bytes));
    }
  }
}

}  // namespace
}  // namespace hayloft
