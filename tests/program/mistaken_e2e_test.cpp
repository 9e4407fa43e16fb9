#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "offload/snapshot/snapshot.h"
#include "runtime/context/column_choice.h"
#include "tests/program/served.h"
#include "tests/support/temporary_folder.h"

// Tests what is asked for by mistake, and is told before the work: lengths beyond all sense, questions without words,
// places that cannot be written, commands that change nothing.
namespace hayloft {
namespace {

using test::Outcome;
using test::refused_with;
using test::run_program;

class Mistaken : public ::testing::Test {
 protected:
  // Returns the name of a saved context of some text.
  std::string saved() const {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "The quiet hay lies in the loft. ";
    const std::string path = folder_ / "hay.hay";
    const Outcome made = run_program({"ingest", "-f", folder_.write("hay.txt", text), "--save", path, "-t", "2"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return path;
  }
  static bool says(const Outcome& outcome, const std::string& part) {
    return outcome.err.find(part) != std::string::npos;
  }

  test::TemporaryFolder folder_;
};

TEST_F(Mistaken, AQuestionWithoutWordsIsRefused) {
  const std::string context = saved();
  for (const char* question : {"", " \t"}) {
    EXPECT_TRUE(refused_with(run_program({"ask", context, "-p", "Where?", "-p", question}), 2, {"question is empty"}));
  }
}

TEST_F(Mistaken, MoreNeedlesThanThereIsRoomOrNamesForAreRefused) {
  const auto needle = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"needle", "-c", "1k", "--attn", "dense", "-t", "2"});
    return run_program(more);
  };
  const Outcome many = needle({"--depths", "1000000"});
  EXPECT_EQ(many.exit_code, 1);
  EXPECT_TRUE(says(many, "--ctx-size 1024: too short for 1000000 needles; use a longer context or fewer --depths"))
      << many.err;
  const Outcome nameless = needle({"--depths", "2000000000", "--one-needle"});
  EXPECT_EQ(nameless.exit_code, 1);
  EXPECT_TRUE(says(nameless, "--depths 2000000000: there are names for")) << nameless.err;
}

TEST_F(Mistaken, AnOriginThatNoPageHasIsRefused) {
  const test::Served other;
  for (const std::string origin :
       {"http://localhost:3000/", "localhost:3000", "http://Host", "http://a,http://b", "**"}) {
    // The port is taken, so that a server that took the origin would end as well.
    const Outcome served = run_program(
        {"serve", "--port", std::to_string(other.port), "--cors", origin, "-m", test::needle_model.string()});
    EXPECT_TRUE(refused_with(served, 2, {"--cors " + origin + ": no page has this origin"}));
  }
  for (const std::string origin : {"http://localhost:3000", "app://obsidian.md", "file://", "null", "*"}) {
    const test::Served server({"--cors", origin});
    EXPECT_EQ(test::http(server.port, "GET", "/v1/models", "", "Origin: " + origin + "\r\n").status, 200) << origin;
  }
}

TEST_F(Mistaken, ARequestLengthThatMemoryDoesNotHoldIsTold) {
  test::Served server({"-c", "1000M", "--host-memory", "64MiB"});
  const std::string told = server.program().error_output();
  EXPECT_NE(told.find("note: --ctx-size 1048576000: 64.0 MiB of host memory hold"), std::string::npos) << told;
}

TEST_F(Mistaken, AnOutputThatCannotBeWrittenIsAnErrorAndNoWrongUsage) {
  const std::string context = saved(), nowhere = folder_ / "nowhere/out";
  const std::string model = test::needle_model.string();
  for (const char* option : {"--json", "--audit-json", "--attention-stats"}) {
    EXPECT_TRUE(refused_with(run_program({"generate", "-m", model, "-p", "hay", option, nowhere}), 1,
                             {nowhere, "cannot be written"}))
        << option;
    EXPECT_TRUE(
        refused_with(run_program({"ask", context, "-p", "Where?", option, nowhere}), 1, {nowhere, "cannot be written"}))
        << option;
  }
  EXPECT_TRUE(refused_with(run_program({"ask", context, "-p", "Where?", "--quotes", "--plot", nowhere + ".svg"}), 1,
                           {nowhere, "cannot be written"}));
}

TEST_F(Mistaken, AKForALayerThatTheModelLacksIsRefusedBeforeTheWork) {
  const std::vector<std::string> what{"--attn-k 64,32", "has 2 values", "the model has 1"};
  const std::vector<std::vector<std::string>> commands{
      {"generate", "-m", test::needle_model.string(), "-p", "The hay", "--attn", "topk:k=64,32"},
      {"generate", "-m", test::needle_model.string(), "-p", "The hay", "--exact", "--draft", "self:topk:k=64,32"},
      {"needle", "-c", "1k", "--attn", "dense,sparq:k=64,32"},
      {"eval", "-c", "1k", "--attn", "dense,sparq:k=64,32"},
      {"serve", "-m", test::needle_model.string(), "--port", "0", "--attn", "topk:k=64,32"},
      {"serve", "-m", test::needle_model.string(), "--port", "0", "--exact", "--draft", "self:topk:k=64,32"}};
  for (const std::vector<std::string>& command : commands) {
    EXPECT_TRUE(refused_with(run_program(command), 1, what)) << command.front();
  }
  for (const char* command : {"bench", "plan"}) {
    const Outcome outcome = run_program({command, "--shape", "1,4,2,64", "-c", "1k", "--attn", "sparq:k=64,32"});
    EXPECT_TRUE(refused_with(outcome, 2, what)) << command;
  }
}

// Says nothing of the machine, which would be the first step of measuring it.
TEST_F(Mistaken, AProfileThatCannotBeKeptIsToldBeforeAnythingIsMeasured) {
  const std::string file = folder_.write("file", "");
  const Outcome outcome =
      test::Program({"link", "--device", "cpu", "-v", "--seconds", "0.1"}, "export XDG_CACHE_HOME=" + file).wait();
  EXPECT_TRUE(refused_with(outcome, 1, {"profile.json", "cannot be written", "Not a directory", "--profile"}));
}

TEST_F(Mistaken, AnIndexThatIsThereIsNotWrittenAgain) {
  const std::string context = saved();
  const auto before = std::filesystem::file_size(context);
  const Outcome first = run_program({"index", context, "-t", "2"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_TRUE(says(first, " in all\n")) << first.err;
  const auto indexed = std::filesystem::file_size(context);
  EXPECT_LT(indexed, before + before / 4) << "what it has is not in it twice";
  const Outcome again = run_program({"index", context, "-t", "2"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(says(again, "it had them already, and nothing was written")) << again.err;
  EXPECT_EQ(std::filesystem::file_size(context), indexed);
}

TEST_F(Mistaken, VerifyingSaysWhatDamageTheOtherSlotOfTheHeaderStandsInFor) {
  const std::string context = saved();
  EXPECT_FALSE(says(run_program({"inspect", context, "--verify"}), "warning"));
  std::fstream(context, std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('\x55');
  const Outcome outcome = run_program({"inspect", context, "--verify"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(says(outcome, "warning: " + context + ": slot 0")) << outcome.err;
  EXPECT_NE(outcome.out.find("damaged_slot"), std::string::npos) << outcome.out;
}

TEST_F(Mistaken, ADamagedMeasurementOfTheColumnsIsSaid) {
  const std::string context = saved();
  const auto asked = [&] { return run_program({"ask", context, "-p", "Where?", "-n", "1"}); };
  const std::string note = "note: " + context + ": what was measured of its columns cannot be read";
  EXPECT_FALSE(says(asked(), note));
  const auto measured = runtime::saved_column_recall(offload::Snapshot::open(context));
  ASSERT_TRUE(measured);
  const std::vector<std::byte> bytes = runtime::save_column_recall(*measured);
  std::ifstream file(context, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const std::size_t at = whole.find({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  ASSERT_NE(at, std::string::npos);
  std::fstream(context, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(at + bytes.size() / 2))
      .put('\x55');
  for (const Outcome& outcome : {asked(), run_program({"inspect", context})}) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(says(outcome, note)) << outcome.err;
  }
}

}  // namespace
}  // namespace hayloft
