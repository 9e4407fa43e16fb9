#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// The audit as a user runs it, on the bundled model.
namespace hayloft {
namespace {

using test::Outcome;
using test::refused_with;
using test::run_program;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class AuditProgram : public ::testing::Test {
 protected:
  AuditProgram() {
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 300; ++i) text << "The barn by the river holds " << i << " bales of hay. ";
  }

  Outcome generate(std::vector<std::string> more, const char* method = "sparq:r=8:k=32") {
    std::vector<std::string> arguments = {"generate",
                                          "-m",
                                          HAYLOFT_SOURCE_DIR "/examples/needle-model/model",
                                          "-f",
                                          folder_ / "text.txt",
                                          "-n",
                                          "24",
                                          "--block-tokens",
                                          "256",
                                          "--attn",
                                          method};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  test::TemporaryFolder folder_;
};

TEST_F(AuditProgram, ReportsWhatItSampledAndGeneratesTheSameText) {
  const Outcome plain = generate({});
  const Outcome audited =
      generate({"--audit=25%", "--audit-json", folder_ / "audit.json", "--attention-stats", folder_ / "attention.md"});
  ASSERT_EQ(audited.exit_code, 0) << audited.err;
  EXPECT_EQ(audited.out, plain.out);
  EXPECT_NE(audited.err.find("steps x layers measured against exact attention"), std::string::npos) << audited.err;
  const auto json = nlohmann::json::parse(contents(folder_ / "audit.json"));
  EXPECT_EQ(json["measured"].get<int>() + json["dropped"].get<int>(), json["chosen"].get<int>());
  EXPECT_GE(json["measured"], 1);
  EXPECT_EQ(json["rows"].size(), 2u);  // the global layer's two KV heads
  EXPECT_EQ(json["rows"][0]["layer"], 3);
  EXPECT_NE(contents(folder_ / "attention.md").find("| layer | entropy"), std::string::npos);
}

TEST_F(AuditProgram, ShowsWhereAnAnswerLooked) {
  const std::string book = folder_ / "book.hay", plot = folder_ / "map.svg";
  ASSERT_EQ(run_program({"ingest", "-m", HAYLOFT_SOURCE_DIR "/examples/needle-model/model", "-f",
                         (folder_ / "text.txt").string(), "--save", book, "--block-tokens", "256"})
                .exit_code,
            0);
  const std::vector<std::string> ask{"ask", book, "-p", "the barn", "-n", "40", "--attn", "dense"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ask.begin(), ask.end());
    return run_program(more);
  };
  const Outcome shown = with({"--quotes", "2", "--plot", plot});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_EQ(shown.out, with({}).out) << "it changes no answer";
  EXPECT_NE(shown.err.find("█"), std::string::npos) << shown.err;
  EXPECT_NE(shown.err.find(" 1. "), std::string::npos) << shown.err;
  EXPECT_NE(shown.err.find("quotes: exact attention of "), std::string::npos) << shown.err;
  const std::string picture = contents(plot);
  EXPECT_NE(picture.find("<svg"), std::string::npos);
  EXPECT_NE(picture.find("the barn"), std::string::npos);
  EXPECT_EQ(with({"--quotes", "0"}).exit_code, 2);
  EXPECT_NE(with({"--plot", "map.png"}).exit_code, 0);
}

TEST_F(AuditProgram, SaysNothingUnlessAsked) {
  EXPECT_EQ(generate({}).err.find("audit:"), std::string::npos);
}

TEST_F(AuditProgram, AutoIsTheDefaultAndSaysWhatItTook) {
  const std::vector<std::string> text = {
      "generate",       "-m", HAYLOFT_SOURCE_DIR "/examples/needle-model/model", "-f", folder_ / "text.txt", "-n", "24",
      "--block-tokens", "256"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), text.begin(), text.end());
    return run_program(more);
  };
  const Outcome fastest = run({"-v", "--fidelity", "none"});
  ASSERT_EQ(fastest.exit_code, 0) << fastest.err;
  EXPECT_NE(fastest.err.find("attention: auto, predicted by "), std::string::npos) << fastest.err;
  EXPECT_NE(fastest.err.find(" in 24 steps x layers"), std::string::npos) << fastest.err;
  EXPECT_EQ(run({"-v", "--attn", "auto:k=100%"}).out, run({"--attn", "dense"}).out);
  const Outcome usual = run({});
  EXPECT_EQ(run({"--attn", "auto"}).out, usual.out);
  EXPECT_EQ(run({"--fidelity", "95%"}).out, usual.out) << "what auto keeps unless it is told otherwise";
}

TEST_F(AuditProgram, TheLastLineSaysWhetherAttentionWasExact) {
  const std::vector<std::string> text = {
      "generate",       "-m", HAYLOFT_SOURCE_DIR "/examples/needle-model/model", "-f", folder_ / "text.txt", "-n", "8",
      "--block-tokens", "256"};
  const auto said = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = text;
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all).err;
  };
  EXPECT_NE(said({"--attn", "dense"}).find("attention: exact\n"), std::string::npos);
  const std::string window = said({"--attn", "window:window=16"});
  EXPECT_NE(window.find("attention: approximate: "), std::string::npos) << window;
  EXPECT_NE(window.find("% of the positions attended to, by window"), std::string::npos) << window;
  EXPECT_NE(window.find("--audit measures what that catches"), std::string::npos) << window;
  const std::string draw = said({"--attn", "topk:k=16:rest=draw"});
  EXPECT_NE(draw.find("attention: approximate: predicted output error "), std::string::npos) << draw;
  EXPECT_NE(draw.find(" in layer 3), "), std::string::npos) << draw;
  EXPECT_NE(draw.find("% of the attention mass attended\n"), std::string::npos) << draw;
}

TEST_F(AuditProgram, KeepsAFidelityAndSaysWhichWasMeasured) {
  const Outcome kept = generate({"--fidelity", "80%", "-v", "--audit-json", folder_ / "audit.json"});
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_NE(kept.err.find("fidelity: 80% asked; "), std::string::npos) << kept.err;
  EXPECT_EQ(generate({"--fidelity", "80%"}).out, kept.out);
  const auto json = nlohmann::json::parse(contents(folder_ / "audit.json"));
  EXPECT_EQ(json["fidelity"]["asked"], 0.8);
  EXPECT_GE(json["fidelity"]["samples"], 1);
  std::int64_t steps = 0;
  for (const auto& [method, count] : json["methods"].items()) steps += count.get<std::int64_t>();
  EXPECT_EQ(steps, 24);
  EXPECT_TRUE(refused_with(generate({"--fidelity", "0"}), 2, {"--fidelity 0", "share"}));
  EXPECT_TRUE(refused_with(generate({"--fidelity", "99"}), 2, {"--fidelity 99", "99%"}));
  EXPECT_TRUE(refused_with(generate({"--fidelity", "much"}), 2, {"--fidelity much", "share"}));
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", HAYLOFT_SOURCE_DIR "/examples/needle-model/model", "-p",
                                        "hay", "-n", "2", "--attn", "h2o", "--fidelity", "90%"}),
                           1, {"--attn h2o"}));
}

TEST_F(AuditProgram, RefusesWhatIsNoShare) {
  EXPECT_TRUE(refused_with(generate({"--audit", "book.txt"}), 2, {"--audit book.txt", "share"}));
  EXPECT_TRUE(refused_with(generate({"--audit=2"}), 2, {"--audit 2", "share"}));
  EXPECT_TRUE(refused_with(generate({"--audit-json", "/nowhere/audit.json"}), 1, {"/nowhere/audit.json", "written"}));
}

TEST_F(AuditProgram, JsonSaysWhetherTheAnswerWasExact) {
  const std::string file = folder_ / "run.json";
  ASSERT_EQ(generate({"--json", file}).exit_code, 0);
  auto json = nlohmann::json::parse(contents(file));
  EXPECT_EQ(json["exact"], false);
  EXPECT_EQ(json["attention"].get<std::string>().rfind("approximate: ", 0), 0u) << json["attention"];
  EXPECT_TRUE(json["mass"].is_null());
  const Outcome audited = generate({"--json", file, "--audit=100%", "--audit-json", folder_ / "audit.json"});
  json = nlohmann::json::parse(contents(file));
  EXPECT_EQ(json["samples"], nlohmann::json::parse(contents(folder_ / "audit.json"))["measured"]);
  EXPECT_GT(json["mass"], 0.0);
  EXPECT_LT(json["mass"], 1.0);
  EXPECT_EQ(audited.err.find("--audit measures"), std::string::npos) << audited.err;
  EXPECT_NE(audited.err.find("% of the attention mass caught in "), std::string::npos) << audited.err;
  ASSERT_EQ(generate({"--json", file}, "dense").exit_code, 0);
  json = nlohmann::json::parse(contents(file));
  EXPECT_EQ(json["exact"], true);
  EXPECT_EQ(json["attention"], "exact");
}

}  // namespace
}  // namespace hayloft
