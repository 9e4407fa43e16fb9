#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// Tests what becomes of a prompt before the model reads it, and what is said about it.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Outcome;
using test::run_program;

class PromptTest : public ::testing::Test {
 protected:
  // The bundled model with some file changed.
  std::string model_with(const char* file, const std::function<void(json&)>& change) const {
    const fs::path source = fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
    const fs::path model = folder_ / "model";
    fs::create_directory(model);
    for (const auto& entry : fs::directory_iterator(source)) fs::create_symlink(entry, model / entry.path().filename());
    json document = json::parse(std::ifstream(source / file));
    change(document);
    fs::remove(model / file);
    std::ofstream(model / file) << document.dump();
    return model;
  }

  std::string made_for(int positions) const {
    return model_with("config.json", [&](json& config) { config["max_position_embeddings"] = positions; });
  }

  // Succeeds when standard error has the line about too long a context, or has none.
  static ::testing::AssertionResult notes_length(const Outcome& outcome, bool expected) {
    if (outcome.exit_code != 0) return ::testing::AssertionFailure() << outcome.err;
    const bool found = outcome.err.find("note: ") != std::string::npos &&
                       outcome.err.find("the 64 positions") != std::string::npos &&
                       outcome.err.find("config.json") != std::string::npos &&
                       outcome.err.find("max_position_embeddings") != std::string::npos;
    return (found == expected ? ::testing::AssertionSuccess() : ::testing::AssertionFailure()) << outcome.err;
  }

  static std::string words(int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += " hay";
    return text;
  }
  std::string at(const char* name) const { return folder_ / name; }

  test::TemporaryFolder folder_;
};

TEST_F(PromptTest, LongerThanTheModelWasMadeForIsSaid) {
  const std::string model = made_for(64);
  const auto generate = [&](int n) { return run_program({"generate", "-m", model, "-p", words(n), "-n", "1"}); };
  EXPECT_TRUE(notes_length(generate(20), false));
  EXPECT_TRUE(notes_length(generate(200), true));
  EXPECT_TRUE(notes_length(run_program({"needle", "-m", model, "-c", "256", "--depths", "1"}), true));
  EXPECT_TRUE(
      notes_length(run_program({"eval", "-m", model, "-c", "256", "--tasks", "depths", "--samples", "1"}), true));

  const std::string text = folder_.write("hay.txt", words(200));
  EXPECT_TRUE(notes_length(run_program({"ingest", "-m", model, "-f", text, "--save", at("hay.hay")}), true));
  EXPECT_TRUE(notes_length(run_program({"ask", at("hay.hay"), "-p", "hay", "-n", "1"}), true));
}

TEST_F(PromptTest, BeginsWithBosOnce) {
  // The bundled tokenizer puts nothing before a text; this one begins every text with its one special token.
  const std::string bos = "<|end_of_text|>";
  const std::string model = model_with("tokenizer.json", [&](json& tokenizer) {
    tokenizer["post_processor"] = {{"type", "TemplateProcessing"},
                                   {"single", {{{"SpecialToken", {{"id", bos}}}}, {{"Sequence", {{"id", "A"}}}}}},
                                   {"pair", json::array()},
                                   {"special_tokens", {{bos, {{"id", bos}, {"ids", {0}}, {"tokens", {bos}}}}}}};
  });
  const auto prompt_line = [&](const std::string& prompt) {
    const std::string err = run_program({"generate", "-m", model, "-p", prompt, "-n", "1"}).err;
    const std::size_t begin = err.find("prompt: ");
    return begin == std::string::npos ? err : err.substr(begin, err.find(" tokens", begin) - begin);
  };
  EXPECT_EQ(prompt_line(" hay hay"), prompt_line(bos + " hay hay"));

  const auto ingested = [&](const std::string& text) {
    const std::string file = folder_.write("text.txt", text);
    fs::remove(at("text.hay"));
    EXPECT_EQ(run_program({"ingest", "-m", model, "-f", file, "--save", at("text.hay")}).exit_code, 0);
    const std::string err = run_program({"ask", at("text.hay"), "-p", "hay", "-n", "1"}).err;
    const std::size_t begin = err.find("text.hay: ");
    return begin == std::string::npos ? err : err.substr(begin, err.find('\n', begin) - begin);
  };
  EXPECT_EQ(ingested(" hay hay"), ingested(bos + " hay hay"));
}

TEST_F(PromptTest, RopeAndWeightsBelongToTheContextThatIsReadWithThem) {
  const std::string text = folder_.write("hay.txt", words(100));
  const std::string model = made_for(64);
  const std::string context = at("hay.hay");
  ASSERT_EQ(run_program({"ingest", "-m", model, "-f", text, "--save", context, "--rope-freq-base", "5000"}).exit_code,
            0);
  const auto ask = [&](const std::string& base) {
    return run_program({"ask", context, "-p", "hay", "-n", "1", "--rope-freq-base", base});
  };
  EXPECT_EQ(ask("5000").exit_code, 0);
  EXPECT_NE(ask("6000").err.find("the same --rope and --weights options"), std::string::npos);

  const std::string rounded = at("rounded.hay");
  ASSERT_EQ(run_program({"ingest", "-m", model, "-f", text, "--save", rounded, "--weights", "q8"}).exit_code, 0);
  EXPECT_EQ(run_program({"ask", rounded, "-p", "hay", "-n", "1", "--weights", "q8"}).exit_code, 0);
  EXPECT_NE(run_program({"ask", rounded, "-p", "hay", "-n", "1"}).err.find("the same --rope and --weights options"),
            std::string::npos);

  const Outcome stretched = run_program(
      {"generate", "-m", model, "-p", words(200), "-n", "1", "--rope-scaling", "yarn", "--rope-scale", "4"});
  EXPECT_TRUE(notes_length(stretched, false));
  EXPECT_TRUE(test::refused_with(run_program({"generate", "-m", model, "-p", "hay", "--rope-scaling", "tower"}), 2,
                                 {"--rope-scaling", "none|linear|yarn"}));
  EXPECT_TRUE(test::refused_with(run_program({"ask", context, "-p", "hay", "--yarn-orig-ctx", "64"}), 1,
                                 {"--yarn-orig-ctx 64", "--rope-scaling yarn"}));
}

}  // namespace
}  // namespace hayloft
