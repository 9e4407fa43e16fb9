// The programs of docs/extending.md, which know hayloft by its public headers alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/program/program.h"

namespace hayloft {
namespace {

using test::Outcome;
using test::Program;

const std::filesystem::path source = HAYLOFT_SOURCE_DIR;

class OwnArchitecture : public ::testing::Test {
 protected:
  const std::filesystem::path folder = source / "tests/golden/models/seed_oss";
  const nlohmann::json golden = nlohmann::json::parse(std::ifstream(folder / "golden.json"));

  Outcome run(const std::filesystem::path& model) const {
    std::vector<std::string> arguments{model};
    for (const int token : golden.at("tokens")) arguments.push_back(std::to_string(token));
    return Program({HAYLOFT_ARCHITECTURE_EXAMPLE, arguments}).wait();
  }
};

TEST_F(OwnArchitecture, GivesTheLogitsOfTransformers) {
  const Outcome outcome = run(folder);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::smatch found;
  ASSERT_TRUE(
      std::regex_search(outcome.out, found, std::regex("(\\d+) logits: at most ([0-9.]+) .* ([0-9.]+) in root")))
      << outcome.out;
  EXPECT_EQ(std::stoul(found[1]), golden.at("tokens").size() * 128);
  // As model_golden_test has it: what the f16 cache moves on the reference, and f32 sums in another order.
  const double f32 = 4 * golden.at("f32").at("largest").get<double>();
  EXPECT_LE(std::stod(found[2]), 1.25 * golden.at("f16_cache").at("largest").get<double>() + f32);
  EXPECT_LE(std::stod(found[3]), 1.25 * golden.at("f16_cache").at("rms").get<double>() + f32);
}

TEST_F(OwnArchitecture, PrintsTheLikeliestTokensOfAModelWithoutRecordedLogits) {
  const test::TemporaryFolder model;
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::filesystem::create_symlink(folder / file, std::filesystem::path(model.path()) / file);
  }
  const Outcome outcome = run(model.path());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::regex_match(outcome.out, std::regex("(token +\\d+  logit +-?[0-9.]+\n){5}"))) << outcome.out;
}

TEST_F(OwnArchitecture, IsRefusedByAProgramThatHasNotRegisteredIt) {
  const Outcome outcome = test::run_program({"plan", "-m", folder / "config.json"});
  EXPECT_TRUE(refused_with(outcome, 1, {"config.json", "model_type", "seed_oss", "register_architecture()"}));
}

// The figures in a line of examples/column-format.
struct Figures {
  double elements = 0, near = 0, link = 0;  // a token
  double distance = 0;                      // of logits from those of dense attention
};

Outcome decode_by(std::vector<std::string> methods) {
  methods.insert(methods.begin(), {source / "examples/needle-model/model", source / "LICENSE"});
  return Program({HAYLOFT_COLUMN_FORMAT_EXAMPLE, methods}).wait();
}

std::vector<Figures> figures_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::regex line(
      "(\\d+) elements a token, +(\\d+) bytes near memory, +(\\d+) over the link; logits within ([0-9.]+)\n");
  std::vector<Figures> all;
  for (auto at = std::sregex_iterator(outcome.out.begin(), outcome.out.end(), line); at != std::sregex_iterator();
       ++at) {
    all.push_back({std::stod((*at)[1]), std::stod((*at)[2]), std::stod((*at)[3]), std::stod((*at)[4])});
  }
  return all;
}

TEST(OwnColumnFormat, ReadsABitOfEveryComponentAndTheRangesOfItsBlocks) {
  const std::vector<Figures> of = figures_of(decode_by({"topk:k=64:select=kv-head", "signs:k=64"}));
  ASSERT_EQ(of.size(), 2u);
  // For each component an f16 column has 16 bits for each token; here it is one, and 32 for the 64 of a block.
  EXPECT_NEAR(of[1].near, of[0].near * (1 + 0.5) / 16, 1.5);
  EXPECT_EQ(of[1].link, of[0].link) << "the rows are as many";
  EXPECT_LT(of[1].elements, of[0].elements / 4);
}

TEST(OwnColumnFormat, FindsWhatAttentionWeighs) {
  const std::vector<Figures> of = figures_of(decode_by({"window:k=64", "signs:k=64", "signs:k=256", "signs:k=1M"}));
  ASSERT_EQ(of.size(), 4u);
  EXPECT_LT(of[1].distance, of[0].distance / 2);
  EXPECT_LT(of[2].distance, of[1].distance / 2);
  EXPECT_LT(of[3].distance, 0.01) << "every position is attended to";
}

// Each decodes in a fork of the text, in which blocks fill: what it keeps of those the next does not see.
TEST(OwnColumnFormat, ForksKeepApart) {
  const Outcome outcome = decode_by({"signs:k=64", "signs:k=64"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::size_t half = outcome.out.size() / 2;
  EXPECT_EQ(outcome.out.substr(0, half), outcome.out.substr(half));
}

TEST(OwnColumnFormat, TakesTheOptionsOfASelection) {
  EXPECT_EQ(figures_of(decode_by({"signs:k=1%:window=16:select=query-head"})).size(), 1u);
  EXPECT_EQ(decode_by({"signs:r=4"}).err,
            "column-format: --attn signs:r=4: signs does not use 'r'; it takes k, window, select\n");
}

// Lines without their indents.
std::string flush_left(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string all, line;
  while (std::getline(file, line)) all += line.erase(0, line.find_first_not_of(' ')) + '\n';
  return all;
}

TEST(Extending, QuotesTheExamplesAsTheyAre) {
  const std::string page = flush_left(source / "docs/extending.md");
  std::string examples;
  for (const char* name : {"method", "column-format", "architecture"}) {
    examples += flush_left(source / "examples" / name / "main.cpp");
  }
  const std::string fence = "```cpp\n";
  int quotes = 0;
  for (std::size_t at = page.find(fence); at != std::string::npos; at = page.find(fence, at)) {
    at += fence.size();
    const std::string quote = page.substr(at, page.find("```", at) - at);
    EXPECT_NE(examples.find('\n' + quote), std::string::npos) << quote;
    ++quotes;
  }
  EXPECT_EQ(quotes, 6);
  const std::string find_package = "find_package(hayloft 0.1 REQUIRED COMPONENTS runtime)\n";
  EXPECT_NE(page.find(find_package), std::string::npos);
  EXPECT_NE(flush_left(source / "tests/package/CMakeLists.txt").find(find_package), std::string::npos);
}

}  // namespace
}  // namespace hayloft
