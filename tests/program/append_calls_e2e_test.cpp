// An append is ended at every system call that changes a file, before it and with half of it done: the context is the
// one it was or the one it becomes, and the same append run again never puts the text in twice.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/program/program.h"

namespace hayloft::test {
namespace {

namespace fs = std::filesystem;

class AppendCalls : public ::testing::TestWithParam<bool> {
 protected:
  AppendCalls() {
    std::string words;
    for (int i = 0; i < 60; ++i) words += "hay and straw and ";
    first_ = folder_.write("first.txt", words);
    second_ = folder_.write("second.txt", "One needle more, and another. " + words);
    EXPECT_EQ(run_program({"ingest", "-f", first_, "--save", at("old.hay"), "--block-tokens", "64", "--batch", "64"})
                  .exit_code,
              0);
    fs::copy_file(at("old.hay"), at("new.hay"));
    EXPECT_EQ(append("new.hay").exit_code, 0);
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  Outcome append(const std::string& name, const std::string& shell = "") const {
    return run_program({"ingest", "--append", at(name), "-f", second_, "-t", "1", "--checkpoint-seconds", "1000000"},
                       shell);
  }
  std::string digest(const std::string& name) const {
    const Outcome outcome = run_program({"inspect", at(name), "--verify", "--json", "-"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto report = nlohmann::json::parse(outcome.out, nullptr, false);
    EXPECT_EQ(report.value("complete", false), true);
    return report.value("content_digest", "");
  }
  // Killed at the call of this number.
  std::string killed_at(int call) const {
    return "export LD_PRELOAD=" HAYLOFT_FAULTS " HAYLOFT_FAULTS_KILL_AT=" + std::to_string(call) +
           " HAYLOFT_FAULTS_FOLDER=" + folder_.path().string() + (GetParam() ? " HAYLOFT_FAULTS_HALF=1" : "");
  }

  TemporaryFolder folder_;
  std::string first_, second_;
};

TEST_P(AppendCalls, LeaveTheOldContextOrTheNewOne) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's library must be the first that is loaded";
#endif
  const std::string before = digest("old.hay");
  const std::string after = digest("new.hay");
  ASSERT_NE(before, after);
  int call = 1;
  bool saw_before = false;
  bool saw_after = false;
  for (;; ++call) {
    fs::copy_file(at("old.hay"), at("c.hay"), fs::copy_options::overwrite_existing);
    const Outcome outcome = append("c.hay", killed_at(call));
    if (outcome.signal == 0) {
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      break;
    }
    ASSERT_EQ(outcome.signal, SIGKILL);
    const std::string now = digest("c.hay");
    ASSERT_TRUE(now == before || now == after) << "killed at call " << call;
    saw_before |= now == before;
    saw_after |= now == after;
    ASSERT_EQ(append("c.hay").exit_code, 0) << "killed at call " << call;
    ASSERT_EQ(digest("c.hay"), after) << "killed at call " << call;
  }
  EXPECT_GT(call, 8);  // the checkpoint, its sync, its slot, another sync, the other slot, ...
  EXPECT_TRUE(saw_before);
  EXPECT_TRUE(saw_after) << "the last calls come behind the one that makes it the new context";
  RecordProperty("calls", call - 1);
}

INSTANTIATE_TEST_SUITE_P(All, AppendCalls, ::testing::Bool(),
                         [](const auto& half) { return half.param ? "WithHalfOfTheCall" : "BeforeTheCall"; });

TEST(AppendTwice, AddsNothingUnlessInsistedUpon) {
  const TemporaryFolder folder;
  const std::string text = folder.write("hay.txt", "Hay and straw and a needle in the hay.");
  const std::string path = (folder.path() / "hay.hay").string();
  ASSERT_EQ(run_program({"ingest", "-f", text, "--save", path}).exit_code, 0);
  const auto tokens = [&] {
    return nlohmann::json::parse(run_program({"inspect", path, "--json", "-"}).out)["tokens"].get<int>();
  };
  const std::string more = folder.write("more.txt", " And more hay behind it.");
  ASSERT_EQ(run_program({"ingest", "--append", path, "-f", more}).exit_code, 0);
  const int once = tokens();
  const Outcome again = run_program({"ingest", "--append", path, "-f", more});
  EXPECT_EQ(again.exit_code, 0);
  EXPECT_NE(again.err.find("ends with this text already"), std::string::npos) << again.err;
  EXPECT_EQ(tokens(), once);
  ASSERT_EQ(run_program({"ingest", "--append", path, "-f", more, "--again"}).exit_code, 0);
  EXPECT_GT(tokens(), once);
  EXPECT_TRUE(refused_with(run_program({"ingest", "--save", path, "-f", more, "--again"}), 2, {"--again", "--append"}));
}

}  // namespace
}  // namespace hayloft::test
