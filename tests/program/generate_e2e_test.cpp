#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/program/program_fixture.h"

// `hayloft generate` from outside: what it prints, and how it refuses models and contexts.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::ProgramTest;
using test::refused_with;
using test::run_program;
using test::small_tokenizer;

TEST_F(ProgramTest, GenerateStreamsTextToStandardOutputAndTheRestToStandardError) {
  const std::string model = make_model();
  const std::vector<std::string> arguments{"generate", "-m", model, "-p", "the hay", "-n", "12"};
  const Outcome first = run_program(arguments);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_GE(first.out.size(), 2u);
  EXPECT_NE(first.err.find("prompt: 7 tokens"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("ms/token"), std::string::npos) << first.err;
  EXPECT_EQ(run_program(arguments).out, first.out) << "greedy decoding is repeatable";

  std::vector<std::string> sparse = arguments;
  sparse.insert(sparse.end(), {"--attn", "sparq:r=8:k=4096"});
  EXPECT_EQ(run_program(sparse).out, first.out) << "with all components and positions SparQ is dense attention";
}

TEST_F(ProgramTest, GenerateSamplesTheSameTextFromTheSameSeed) {
  const std::string model = make_model("llama");
  const auto sample = [&](const std::string& seed) {
    return run_program({"generate", "-m", model, "-p", "hay", "-n", "24", "--temp", "1.5", "--seed", seed}).out;
  };
  EXPECT_EQ(sample("1"), sample("1"));
  EXPECT_NE(sample("1"), sample("2"));
}

TEST_F(ProgramTest, SeveralAnswersAreThoseOfSeedsThatFollowEachOther) {
  const std::string model = make_model("llama");
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"generate", "-m", model, "-p", "hay", "-n", "24"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  std::string expected;
  for (const char* seed : {"5", "6", "7"}) {
    expected += (expected.empty() ? "" : "\n") + generate({"--temp", "1.5", "--seed", seed}).out;
  }
  const Outcome all = generate({"--temp", "1.5", "--seed", "5", "--answers", "3"});
  EXPECT_EQ(all.out, expected);
  EXPECT_EQ(all.err.find("prompt: "), all.err.rfind("prompt: ")) << "read once";
  EXPECT_TRUE(refused_with(generate({"--answers", "3"}), 1, {"--answers 3", "--temp"}));
}

TEST_F(ProgramTest, RoundedInputsAreAskedForAndSaid) {
  const std::string model = make_model("llama");
  std::vector<std::string> arguments{"generate", "-m", model, "-p", "the hay", "-n", "4", "--device", "cpu"};
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), more);
    return run_program(all);
  };
  EXPECT_NE(with({"--weights", "q8"}).err.find("attention: exact\n"), std::string::npos);
  const Outcome rounded = with({"--weights", "q8", "--products", "int8"});
  EXPECT_EQ(rounded.exit_code, 0) << rounded.err;
  EXPECT_NE(
      rounded.err.find("attention: approximate: every position attended to; inputs to quantised weights rounded to "
                       "8 bits\n"),
      std::string::npos)
      << rounded.err;
  EXPECT_TRUE(refused_with(with({"--products", "int8"}), 1, {model, "products int8", "not quantised"}));
  EXPECT_TRUE(refused_with(with({"--products", "int4"}), 2, {"--products int4", "exact|int8"}));
  arguments.back() = "cuda";
  EXPECT_TRUE(refused_with(with({"--products", "int8"}), 1, {"--products int8", "--device cpu"}));
}

TEST_F(ProgramTest, GenerateReadsItsPromptFromAFile) {
  const std::string model = make_model();
  write(folder_.path() / "prompt.txt", "the hay");
  const Outcome from_file = run_program({"generate", "-m", model, "-f", at("prompt.txt"), "-n", "12"});
  EXPECT_EQ(from_file.exit_code, 0) << from_file.err;
  EXPECT_EQ(from_file.out, run_program({"generate", "-m", model, "-p", "the hay", "-n", "12"}).out);
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", model, "-f", at("no.txt")}), 1, {at("no.txt")}));
}

TEST_F(ProgramTest, AMethodThatAttendedToEverythingIsSaidToHave) {
  const std::string model = make_model("llama");
  std::string text;  // of more tokens than always stay in the tail
  for (int i = 0; i < 100; ++i) text += "the hay ";
  const auto noted = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", model, "-p", text, "-n", "4", "-v"});
    const Outcome outcome = run_program(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const std::size_t at = outcome.err.find("as dense attention does");
    return at == std::string::npos ? "" : outcome.err.substr(outcome.err.rfind('\n', at) + 1);
  };
  EXPECT_NE(noted({"--attn", "sparq:r=8:k=16"}).find("sparq r=8 k=16 attended to all "), std::string::npos);
  EXPECT_NE(noted({"--attn", "sparq:r=8:k=16"}).find("no block of 4096 tokens is full"), std::string::npos);
  EXPECT_NE(noted({"--attn", "topk:k=100%", "--block-tokens", "16"}).find("a smaller k"), std::string::npos);
  EXPECT_EQ(noted({"--attn", "topk:k=8", "--block-tokens", "16"}), "");
  EXPECT_EQ(noted({"--attn", "dense"}), "") << "it is meant to";

  write(at("text.txt"), text);
  ASSERT_EQ(run_program({"ingest", "-m", model, "-f", at("text.txt"), "--save", at("text.hay")}).exit_code, 0);
  std::vector<std::string> ask{"ask", at("text.hay"), "-p", "hay", "-n", "2", "--attn", "topk:k=8"};
  EXPECT_EQ(run_program(ask).err.find("as dense attention does"), std::string::npos) << "only when asked";
  ask.emplace_back("-v");
  EXPECT_NE(run_program(ask).err.find("note: topk k=8 attended to all"), std::string::npos);
}

TEST_F(ProgramTest, PrefillIsChosenAndRefusedByItsOptions) {
  const std::string model = make_model("llama");
  const auto generate = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", model, "-p", "the hay the hay the hay the hay", "-n", "12"});
    return run_program(more);
  };
  const Outcome exact = generate({});
  ASSERT_EQ(exact.exit_code, 0) << exact.err;
  EXPECT_EQ(generate({"--prefill", "exact"}).out, exact.out);
  EXPECT_EQ(generate({"--prefill", "window", "--prefill-window", "64"}).out, exact.out) << "it covers the prompt";
  EXPECT_EQ(generate({"--prefill", "topk", "--prefill-k", "100%"}).out, exact.out);
  EXPECT_NE(generate({"--prefill", "window", "--prefill-window", "1", "--prefill-sinks", "0"}).out, exact.out);
  EXPECT_TRUE(refused_with(generate({"--prefill", "sparse:foo=1"}), 2,
                           {"--prefill sparse:foo=1", "mass=, density= or fidelity="}));
  EXPECT_TRUE(refused_with(generate({"--prefill", "magic"}), 2, {"--prefill magic", "exact, sparse, window, topk"}));
  EXPECT_TRUE(refused_with(generate({"--prefill-window", "0"}), 2, {"--prefill-window 0"}));
  EXPECT_TRUE(refused_with(generate({"--prefill-k", "0%"}), 2, {"--prefill-k 0%"}));
}

TEST_F(ProgramTest, OptionsThatThePrefillDoesNotUseAreSaid) {
  const std::string model = make_model("llama");
  const auto notes = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "-m", model, "-p", "the hay the hay", "-n", "2"});
    const Outcome outcome = run_program(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::string found;
    for (std::size_t at = 0; (at = outcome.err.find("note: --prefill-", at)) != std::string::npos; ++at) {
      found += outcome.err.substr(at, outcome.err.find('\n', at) - at) + '\n';
    }
    return found;
  };
  EXPECT_EQ(notes({"--prefill-window", "64"}),
            "note: --prefill-window has no effect: not used by --prefill exact, but by window, topk\n");
  EXPECT_EQ(notes({"--prefill", "window", "--prefill-k", "64", "--prefill-window", "64"}),
            "note: --prefill-k has no effect: not used by --prefill window, but by topk\n");
  EXPECT_EQ(notes({"--prefill", "topk", "--prefill-sinks", "9", "--prefill-k", "64"}),
            "note: --prefill-sinks has no effect: not used by --prefill topk, but by window\n");
  EXPECT_NE(notes({"--prefill", "sparse", "--prefill-window", "64"}).find("not used by --prefill sparse"),
            std::string::npos);
}

TEST_F(ProgramTest, ModelsThatCannotBeReadAreRefused) {
  const auto generate = [&](const fs::path& model) {
    return run_program({"generate", "-m", model, "-p", "the hay", "-n", "2"});
  };
  EXPECT_TRUE(refused_with(generate(folder_ / "model"), 1, {"model"})) << "no such folder";

  fs::path model = make_model();
  const std::string config = contents(model / "config.json");
  write(model / "config.json", std::regex_replace(config, std::regex("\"smollm3\""), "\"mamba\""));
  EXPECT_TRUE(refused_with(generate(model), 1, {"config.json", "mamba"}));
  write(model / "config.json",
        std::regex_replace(config, std::regex("\"intermediate_size\": 64"), "\"intermediate_size\": 72"));
  EXPECT_TRUE(refused_with(generate(model), 1, {"model.safetensors", "72"})) << "another shape than the weights have";

  model = make_model();
  auto tokenizer = small_tokenizer();
  tokenizer["model"].erase("merges");
  write(model / "tokenizer.json", tokenizer.dump());
  EXPECT_TRUE(refused_with(generate(model), 1, {"tokenizer.json", "merges"}));

  model = make_model();
  const std::string weights = contents(model / "model.safetensors");
  write(model / "model.safetensors", weights.substr(0, weights.size() / 2));
  EXPECT_TRUE(refused_with(generate(model), 1, {"model.safetensors"}));
  fs::remove(model / "model.safetensors");
  EXPECT_TRUE(refused_with(generate(model), 1, {"model.safetensors"}));
}

TEST_F(ProgramTest, AContextThatDoesNotFitIsRefusedWithNumbersBeforeTheWork) {
  const std::string model = make_model();
  EXPECT_TRUE(
      refused_with(run_program({"generate", "-m", model, "-p", "the hay", "--ctx-size", "1M", "--host-memory", "1MiB"}),
                   1, {"1048576", "1.0 MiB", "--host-memory"}));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", model, "-p", "the hay", "-n", "20", "--ctx-size", "26"}), 1,
                           {"--ctx-size 26", "27"}));
  EXPECT_TRUE(
      refused_with(run_program({"needle", "-m", model, "--ctx-size", "1M", "--attn", "dense", "--host-memory", "1MiB"}),
                   1, {"1048576", "1.0 MiB", "--host-memory"}));
}

}  // namespace
}  // namespace hayloft
