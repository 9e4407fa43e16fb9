#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"

// hayloft eval as a user runs it, with the bundled model.
namespace hayloft {
namespace {

using test::Outcome;
using test::refused_with;
using test::run_program;

class EvalProgram : public ::testing::Test {
 protected:
  Outcome eval(std::vector<std::string> more) const {
    more.insert(more.begin(), {"eval", "--digits", "6", "--device", "cpu", "--block-tokens", "256"});
    return run_program(more);
  }
  static std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string at(const char* name) const { return folder_ / name; }

  test::TemporaryFolder folder_;
};

TEST_F(EvalProgram, TheBundledModelFindsItsNeedlesAndAWindowLosesThem) {
  const Outcome outcome = eval({"--tasks", "niah_single_1,niah_single_2,niah_multikey_1", "--samples", "4", "-c", "4k",
                                "--attn", "dense,sparq,topk,window", "--agreement", "--json", at("e.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("mean of 3"), std::string::npos) << outcome.out;
  const auto json = nlohmann::json::parse(contents(at("e.json")));
  ASSERT_EQ(json["rows"].size(), 48u);
  std::map<std::string, double> found;
  for (const auto& row : json["rows"]) {
    found[row["method"]["name"]] += row["score"].get<double>();
    EXPECT_LE(row["prompt_tokens"].get<int>() + 128, 4096);
    EXPECT_FALSE(row["kl"].is_null());
  }
  // A model may miss one of twelve; a window of 128 tokens reaches none but by the luck of a needle at the very end.
  for (const char* method : {"dense", "sparq", "topk"}) EXPECT_GE(found[method], 11) << method;
  EXPECT_LE(found["window"], 1);
}

TEST_F(EvalProgram, KeysAndValuesOfFewerBitsAreNotExact) {
  const char* const said = "approximate: every position attended to; keys and values kept in 4 bits";
  const Outcome outcome = eval({"--tasks", "niah_single_1", "--samples", "1", "-c", "1k", "--attn", "dense", "--rows",
                                "int4", "--out", at("e.jsonl"), "--json", at("e.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto row = nlohmann::json::parse(contents(at("e.json")))["rows"][0];
  EXPECT_EQ(row["attention"], said);
  EXPECT_EQ(row["rows"], "int4");
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The hay lies in the loft. ";
  const auto last_line = [&](const std::string& prompt) {
    return run_program({"generate", "-p", prompt, "-n", "2", "--attn", "dense", "--rows", "int4", "--block-tokens",
                        "64", "-m", HAYLOFT_SOURCE_DIR "/examples/needle-model/model"})
        .err;
  };
  EXPECT_NE(last_line(text).find(fmt::format("attention: {}\n", said)), std::string::npos) << last_line(text);
  EXPECT_NE(last_line("The hay").find("attention: exact\n"), std::string::npos) << "all of it is in the tail";
}

TEST_F(EvalProgram, APlotOfNothingKeepsTheFigures) {
  const Outcome outcome = eval({"--tasks", "niah_single_1", "--samples", "1", "-c", "1k", "--attn", "dense", "--plot",
                                at("p.svg"), "--plot-by", "kl", "--json", at("e.json")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("there is nothing to draw"), std::string::npos) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(contents(at("e.json")))["rows"].size(), 1u);
}

TEST_F(EvalProgram, ExactHasNoEffectWhereNothingIsDecoded) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("Hay number {} lies in the loft. ", i);
  const std::string file = folder_.write("text.txt", text);
  const auto run = [&](const char* task) {
    return eval({"--tasks", task, "--text", file, "-c", "512", "--samples", "1", "--attn", "dense", "--exact",
                 "--scored-tokens", "16"});
  };
  const char* const note = "note: --exact has no effect: no task that was asked for reads it\n";
  const Outcome perplexity = run("perplexity"), repetition = run("repetition");
  EXPECT_NE(perplexity.err.find(note), std::string::npos) << perplexity.err;
  EXPECT_EQ(perplexity.out.find("drafted by"), std::string::npos) << perplexity.out;
  EXPECT_EQ(repetition.err.find(note), std::string::npos) << repetition.err;
  EXPECT_NE(repetition.out.find("drafted by"), std::string::npos) << repetition.out;
}

TEST_F(EvalProgram, NeedlesAtEveryDepthOfOneContextAreAskedForOneByOneAndTheContextIsReadOnce) {
  const Outcome outcome = eval(
      {"--tasks", "depths", "--samples", "5", "-c", "8k", "--attn", "dense,topk:k=32,window", "--json", at("e.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(contents(at("e.json")));
  ASSERT_EQ(json["rows"].size(), 15u);
  std::map<std::string, double> found;
  for (const auto& row : json["rows"]) {
    found[row["method"]["name"]] += row["score"].get<double>();
    EXPECT_EQ(row["prefill_seconds"], json["rows"][0]["prefill_seconds"]);
    EXPECT_LE(row["prompt_tokens"].get<int>(), 8192);
    EXPECT_GT(row["prompt_tokens"].get<int>(), 8192 - 64);
  }
  EXPECT_GE(found["dense"], 4);
  EXPECT_GE(found["topk"], 4);
  EXPECT_LE(found["window"], 1);  // the needle at the very end
}

TEST_F(EvalProgram, GoesOnWhereItWasStoppedAndTellsTheSame) {
  const std::vector<std::string> arguments{"--tasks", "niah_single_2", "--samples",    "3",     "-c",
                                           "2k",      "--attn",        "dense,window", "--out", at("rows.jsonl")};
  ASSERT_EQ(eval(arguments).exit_code, 0);
  const std::string whole = contents(at("rows.jsonl"));
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  ASSERT_EQ(lines(whole), 7);

  ASSERT_EQ(eval(arguments).exit_code, 0);
  EXPECT_EQ(contents(at("rows.jsonl")), whole) << "there was nothing left to do";

  std::ofstream(at("rows.jsonl"), std::ios::binary) << whole.substr(0, whole.size() * 2 / 3);
  const Outcome resumed = eval(arguments);
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const std::string again = contents(at("rows.jsonl"));
  ASSERT_EQ(lines(again), 7);
  const auto answers = [](const std::string& text) {
    std::vector<std::string> all;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);)
      all.push_back(nlohmann::json::parse(line).value("prediction", ""));
    return all;
  };
  EXPECT_EQ(answers(again), answers(whole));

  std::vector<std::string> other = arguments;
  other.insert(other.end(), {"--seed", "7"});
  EXPECT_TRUE(refused_with(eval(other), 1, {"rows.jsonl", "another recipe", "seed 42 (here 7)"}));
  other = arguments;
  other.insert(other.end(), {"--weights", "q8"});
  EXPECT_TRUE(refused_with(eval(other), 1, {"rows.jsonl", "another recipe", "weights default (here \"q8\")"}));
  EXPECT_EQ(contents(at("rows.jsonl")), again);
}

// It lies beside the model, whose fingerprint says nothing of it.
TEST_F(EvalProgram, RowsByAnotherTemplateOfTheSameModelAreNotMixedIn) {
  const std::filesystem::path model = at("model");
  std::filesystem::copy(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model", model);
  const auto written = [&](const char* chat) {
    folder_.write("model/chat_template.jinja", chat);
    return eval({"-m", model, "--tasks", "niah_single_1", "--samples", "1", "-c", "1k", "--attn", "dense",
                 "--chat-template", "model", "--out", at("e.jsonl")});
  };
  EXPECT_EQ(written("{{ messages[0].content }}").exit_code, 0);
  EXPECT_EQ(written("{{ messages[0].content }}").exit_code, 0) << "the same recipe";
  EXPECT_TRUE(refused_with(written("{{ messages[0].content }} {{ messages[0].role }}"), 1,
                           {"e.jsonl", "another recipe", "chat_template"}));
}

TEST_F(EvalProgram, MeasuresATextAndDrawsAPlot) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "the hay of field " + std::to_string(i * 37 % 1000) + " was brought in. ";
  folder_.write("book.txt", text);
  const Outcome outcome =
      eval({"--text", at("book.txt"), "-c", "2k", "--samples", "2", "--scored-tokens", "32", "--attn", "dense,topk:k=8",
            "--plot", at("p.svg"), "--format", "csv", "--attention-stats", at("s.md")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\nperplexity,"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("\nrepetition (characters),"), std::string::npos) << outcome.out;
  EXPECT_NE(contents(at("s.md")).find("entropy"), std::string::npos) << contents(at("s.md"));
  EXPECT_NE(contents(at("p.svg")).find("</svg>"), std::string::npos);
}

TEST_F(EvalProgram, ARunThatFindsAllOfItsRowsLeavesTheStatisticsOfTheOneBefore) {
  const std::vector<std::string> arguments{
      "-c",     "512",   "--samples", "1",           "--tasks",           "niah_single_1",
      "--attn", "dense", "--out",     at("r.jsonl"), "--attention-stats", at("s.json")};
  ASSERT_EQ(eval(arguments).exit_code, 0);
  const std::string stats = contents(at("s.json"));
  const Outcome again = eval(arguments);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("no step was measured"), std::string::npos) << again.err;
  EXPECT_EQ(contents(at("s.json")), stats);
}

TEST_F(EvalProgram, ReadsPreparedSamples) {
  folder_.write(
      "my_niah.jsonl",
      R"({"index": 9, "input": "The special magic number for brave harbor is 482913. It rained.\nWhat is the )"
      R"(special magic number for brave harbor?", "outputs": ["482913"], "length": 170, )"
      R"("answer_prefix": " The special magic number for brave harbor is"})");
  const Outcome outcome = eval({"--jsonl", at("my_niah.jsonl"), "--attn", "dense", "--json", at("e.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(contents(at("e.json")));
  ASSERT_EQ(json["rows"].size(), 1u);
  EXPECT_EQ(json["rows"][0]["task"], "my_niah");
  EXPECT_EQ(json["rows"][0]["score"], 1);
  EXPECT_EQ(json["rows"][0]["ctx_size"], 256);
}

TEST_F(EvalProgram, PreparedSamplesHaveTheLengthOfTheirFileAndANameOfTheirOwn) {
  // RULER counted them by another tokenizer.
  const auto sample = [](const std::string& input) {
    return fmt::format(R"({{"input": "{}", "outputs": ["1"], "length": 9}})", input);
  };
  std::filesystem::create_directory(at("other"));
  folder_.write("my.jsonl", sample(fmt::format("{:x>300}", "")));
  folder_.write("other/my.jsonl", sample(fmt::format("{:y>300}", "")));
  folder_.write("none.jsonl", sample(""));
  const std::vector<std::string> one{"eval", "--jsonl", at("my.jsonl"), "--attn", "dense", "--json", at("e.json")};
  const Outcome read = run_program(one);
  ASSERT_EQ(read.exit_code, 0);
  const auto row = nlohmann::json::parse(contents(at("e.json")))["rows"][0];
  EXPECT_EQ(row["ctx_size"], 16);
  EXPECT_NE(read.err.find(fmt::format("note: my at 16: prompts are longer than that in tokens of this model, the first "
                                      "of {} tokens\n",
                                      row["prompt_tokens"].get<int>())),
            std::string::npos)
      << read.err;

  std::vector<std::string> more = one;
  more.insert(more.end(), {"--jsonl", at("other/my.jsonl")});
  EXPECT_TRUE(refused_with(run_program(more), 1, {"other/my.jsonl", "a task my of"}));
  EXPECT_TRUE(refused_with(run_program({"eval", "--jsonl", at("none.jsonl")}), 1,
                           {"none.jsonl", "line 1", "input", "a text to answer"}));
}

TEST_F(EvalProgram, FilesThatNoTaskReadsAreNoted) {
  folder_.write("file.txt", "hay and straw");
  for (const char* option : {"--squad", "--hotpotqa", "--triviaqa", "--cnn-dailymail", "--haystack", "--text"}) {
    const Outcome outcome =
        eval({"--tasks", "niah_single_1", "-c", "512", "--samples", "1", "--attn", "dense", option, at("file.txt")});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find(fmt::format("note: {} has no effect: no task", option)), std::string::npos)
        << outcome.err;
  }
  EXPECT_EQ(eval({"--tasks", "depths", "-c", "512", "--samples", "1", "--attn", "dense", "--haystack", at("file.txt")})
                .err.find("has no effect"),
            std::string::npos);
}

TEST_F(EvalProgram, OptionsThatNoTaskReadsAreNoted) {
  folder_.write("text.txt", fmt::format("{:x>4000}", "hay "));
  folder_.write("my.jsonl", R"({"index": 0, "input": "Hay?", "outputs": ["hay"], "length": 9, "answer_prefix": ""})");
  const auto unread = [&](std::vector<std::string> asked, const char* option, const std::string& value) {
    asked.insert(asked.end(), {"--samples", "1", "--attn", "dense", option, value});
    const Outcome outcome = eval(asked);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.err.find(fmt::format("note: {} has no effect: no task", option)) != std::string::npos;
  };
  const std::vector<std::string> text = {"--text", at("text.txt"), "-c", "512", "--tasks", "perplexity"};
  const std::vector<std::string> number = {"-c", "512", "--tasks", "niah_single_1"};
  const std::vector<std::string> uuid = {"-c", "512", "--tasks", "niah_single_3"};
  const std::vector<std::string> depths = {"-c", "512", "--tasks", "depths"};
  const std::vector<std::string> prepared = {"--jsonl", at("my.jsonl")};
  for (const auto& [asked, reads] : {std::pair(text, false), {number, true}, {uuid, false}, {depths, true}}) {
    EXPECT_EQ(unread(asked, "--digits", "6"), !reads) << asked.back();
  }
  for (const auto& [asked, reads] : {std::pair(text, true), {number, false}, {prepared, false}}) {
    EXPECT_EQ(unread(asked, "--scored-tokens", "16"), !reads) << asked.back();
  }
  for (const auto& [asked, reads] : {std::pair(text, false), {number, true}, {depths, false}, {prepared, false}}) {
    EXPECT_EQ(unread(asked, "--chat-template", "chatml"), !reads) << asked.back();
    EXPECT_FALSE(unread(asked, "--chat-template", "none")) << asked.back();
  }
  for (const auto& [asked, reads] : {std::pair(text, false), {number, true}, {prepared, false}}) {
    EXPECT_EQ(unread(asked, "--seed", "3"), !reads) << asked.back();
  }
  EXPECT_TRUE(unread(prepared, "--ctx-size", "512"));
  EXPECT_NE(eval({"-c", "512", "--tasks", "niah_single_1", "--samples", "1", "--attn", "dense", "--fidelity", "90%"})
                .err.find("note: --fidelity has no effect: only auto keeps it"),
            std::string::npos);
}

TEST_F(EvalProgram, WhatCannotBeDoneIsRefusedInOneLine) {
  EXPECT_TRUE(refused_with(eval({"--tasks", "niah"}), 2, {"--tasks niah", "niah_single_1", "perplexity"}));
  EXPECT_TRUE(refused_with(eval({"--tasks", "qa_1"}), 2, {"qa_1", "--squad"}));
  EXPECT_TRUE(refused_with(eval({"--tasks", "perplexity"}), 2, {"perplexity", "--text"}));
  EXPECT_TRUE(refused_with(eval({"--samples", "0"}), 2, {"--samples 0"}));
  EXPECT_TRUE(refused_with(eval({"--digits", "19"}), 2, {"--digits 19"}));
  EXPECT_TRUE(refused_with(eval({"--chat-template", "llama"}), 2, {"--chat-template llama", "{task}"}));
  EXPECT_TRUE(refused_with(eval({"--effective", "200"}), 2, {"--effective 200"}));
  EXPECT_TRUE(refused_with(eval({"-c", "4k,8k", "--attention-stats", at("s.md")}), 2, {"--attention-stats", "one"}));
  EXPECT_TRUE(refused_with(eval({"--plot", "x.jpg"}), 2, {"x.jpg"}));
  EXPECT_TRUE(refused_with(eval({"--plot-by", "kl"}), 2, {"--plot-by goes with --plot"}));
  EXPECT_TRUE(refused_with(eval({"--plot-against", "bytes"}), 2, {"--plot-against goes with --plot"}));
  EXPECT_TRUE(refused_with(eval({"--format", "xml"}), 2, {"xml", "text|md|csv"}));
  EXPECT_TRUE(refused_with(eval({"--text", at("none.txt")}), 1, {"--text", "none.txt"}));
  EXPECT_TRUE(refused_with(eval({"--haystack", at("none.txt")}), 1, {"--haystack", "none.txt"}));
  EXPECT_TRUE(refused_with(eval({"--jsonl", at("none.jsonl")}), 1, {"--jsonl", "none.jsonl"}));
  EXPECT_TRUE(refused_with(eval({"--out", at("no/rows.jsonl")}), 1, {"--out", "no/rows.jsonl"}));
}

}  // namespace
}  // namespace hayloft
