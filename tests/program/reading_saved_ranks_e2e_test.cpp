#include <regex>

#include "tests/program/saved_ranks_fixture.h"

// Readings of `mpirun hayloft ingest` that end before their end, and go on; more text, and other text.
namespace hayloft {
namespace fs = std::filesystem;
namespace {

using test::Outcome;
using test::Program;
using test::run_program;

class ReadingRanksTest : public test::SavedRanksTest {
 protected:
  // Two ranks, one of which is killed before its call of that number on files of the folder.
  Outcome killed_at(int call, int rank, const std::vector<std::string>& arguments) const {
    return killed_at(call, rank, {program(arguments), program(arguments)});
  }
  Outcome killed_at(int call, int rank, std::vector<std::vector<std::string>> ranks) const {
    std::vector<std::string>& of = ranks[static_cast<std::size_t>(rank)];
    of.insert(of.begin(),
              {"/usr/bin/env", std::string("LD_PRELOAD=") + HAYLOFT_FAULTS,
               "HAYLOFT_FAULTS_FOLDER=" + folder_.path().string(), "HAYLOFT_FAULTS_KILL_AT=" + std::to_string(call)});
    return apart(ranks);
  }
  std::vector<std::string> ingest_with(std::initializer_list<const char*> more) const {
    std::vector<std::string> arguments = ingest(at("book.hay"));
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string digest_alone(const char* text) const {
    EXPECT_EQ(run_program({"ingest", "-f", at(text), "--save", at("one.hay"), "--block-tokens", "64", "--batch", "64"})
                  .exit_code,
              0);
    const std::string digest = inspected(at("one.hay"))["content_digest"];
    fs::remove(at("one.hay"));
    return digest;
  }
  void expect_whole(const std::string& digest) const {
    EXPECT_EQ(inspected(at("book.hay"))["content_digest"], digest);
    EXPECT_EQ(files_of("book.hay").size(), 2u);
  }
};

TEST_F(ReadingRanksTest, ARankThatIsKilledWhileItReadsCostsWhatIsBehindTheLastCheckpoint) {
  const std::string digest = digest_alone("text.txt");
  const auto often = ingest_with({"--checkpoint-seconds", "0"});
  for (const int killed : {0, 1}) {
    const Outcome ended = killed_at(120, killed, often);
    EXPECT_NE(ended.exit_code, 0);
    EXPECT_TRUE(std::regex_search(ended.err, std::regex("rank " + std::to_string(killed) + " .*signal 9")))
        << ended.err;
    EXPECT_FALSE(fs::exists(at("book.hay")));
    EXPECT_EQ(files_of("book.hay"), (std::vector<std::string>{"book.hay.part.1of2", "book.hay.part.2of2"}));
    if (killed == 0) {
      expect_refused(over(3, often), 1, {"part.1of2", "over 2 ranks", "mpirun -n 2"});
      const Outcome alone = run_program(often);
      EXPECT_EQ(alone.exit_code, 1);
      EXPECT_NE(alone.err.find("mpirun -n 2"), std::string::npos) << alone.err;
      expect_refused(over(2, ingest_with({"--columns", "int8"})), 1, {"--columns int8", "was begun with f16"});
    }
    const Outcome again = over(2, often);
    EXPECT_EQ(again.exit_code, 0) << again.err;
    std::smatch from;
    ASSERT_TRUE(std::regex_search(again.err, from, std::regex("went on from token ([0-9]+)"))) << again.err;
    EXPECT_GT(std::stoi(from[1]), 0);
    EXPECT_EQ(std::stoi(from[1]) % 64, 0);
    expect_whole(digest);
    for (const std::string& file : files_of("book.hay")) fs::remove(at(file.c_str()));
    fs::remove(at("book.hay"));
  }
}

// A rank is killed at every ninth of the calls with which it changes files. Either there is no context, and the same
// command makes one; or it is whole.
TEST_F(ReadingRanksTest, ARankThatIsKilledWhileItSavesLeavesNoHalfContext) {
  const std::string book = at("book.hay");
  const Outcome whole = over(2, ingest(book));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const auto digest = inspected(book)["content_digest"];
  const auto remove = [&] {
    for (const std::string& file : files_of("book.hay")) fs::remove(at(file.c_str()));
    fs::remove(book);
  };
  remove();
  for (const int killed : {0, 1}) {
    bool ended = false;
    int kills = 0;
    for (int call = 1; !ended; call += 9) {
      const Outcome outcome = killed_at(call, killed, ingest(book));
      ended = outcome.exit_code == 0;
      if (!ended) {
        ++kills;
        EXPECT_TRUE(std::regex_search(outcome.err, std::regex("rank " + std::to_string(killed) + " .*signal 9")))
            << outcome.err;
      }
      if (fs::exists(book)) {
        EXPECT_EQ(inspected(book)["content_digest"], digest) << "rank " << killed << " at call " << call;
        remove();
      }
    }
    EXPECT_GT(kills, 2) << "of rank " << killed;
  }
}

TEST_F(ReadingRanksTest, RanksWithDisksOfTheirOwnGoOnWithWhatIsOnEach) {
  const std::string digest = digest_alone("text.txt");
  std::vector<std::vector<std::string>> ranks;
  for (const char* machine : {"first", "second"}) {
    fs::create_directory(at(machine));
    ranks.push_back(program(ingest(at(machine) + "/book.hay")));
    ranks.back().insert(ranks.back().end(), {"--checkpoint-seconds", "0"});
  }
  EXPECT_NE(killed_at(120, 1, ranks).exit_code, 0);
  const std::string part = at("second/book.hay.part.2of2");
  fs::rename(part, at("kept"));
  expect_refused(apart(ranks), 1, {"rank 1: ", "book.hay.part.2of2", "is not there", "to read the text anew"});
  fs::rename(at("kept"), part);
  const Outcome again = apart(ranks);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("went on from token"), std::string::npos) << again.err;
  for (const auto& entry : fs::directory_iterator(at("second"))) {
    fs::rename(entry.path(), fs::path(at("first")) / entry.path().filename());
  }
  EXPECT_EQ(inspected(at("first/book.hay"))["content_digest"], digest);
}

TEST_F(ReadingRanksTest, AnInterruptKeepsWhatHasBeenRead) {
  std::string text;
  for (int i = 0; i < 40000; ++i) text += "The hay is in the loft. The cat sleeps on the hay. ";
  write(at("text.txt"), text);
  Program program(
      test::Command{HAYLOFT_MPIRUN, launched(2, ingest_with({"--checkpoint-seconds", "0", "--host-memory", "4GiB"}))});
  const auto grown = [&] {
    std::error_code error;
    const auto bytes = fs::file_size(at("book.hay.part.2of2"), error);
    return !error && bytes > 1000000;
  };
  while (program.running() && !grown()) ::sched_yield();
  ::kill(program.children().at(0), SIGINT);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("tokens are kept in " + at("book.hay") + ".part.*; the same command goes on"),
            std::string::npos)
      << outcome.err;
  ASSERT_EQ(own_lines(outcome).size(), 1u) << outcome.err;
  EXPECT_EQ(own_lines(outcome).front(), "hayloft: interrupted");
  EXPECT_EQ(files_of("book.hay").size(), 2u);
}

TEST_F(ReadingRanksTest, MoreTextAndAnotherTextEndInTheContextOfOneProcess) {
  std::string first, second;
  for (int i = 0; i < 40; ++i) first += "The hay is in the loft. ";
  for (int i = 0; i < 30; ++i) second += " The cat sleeps on the hay.";
  write(at("first.txt"), first + "The end.");
  write(at("second.txt"), second);
  write(at("both.txt"), first + "The end." + second);
  write(at("changed.txt"), first + "The end." + second + " And so on.");
  const std::string book = at("book.hay");
  const Outcome begun = over(2, {"ingest", "-f", at("first.txt"), "--save", book, "--block-tokens", "64", "--batch",
                                 "64", "--checkpoints", "4", "--checkpoint-seconds", "0"});
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  const std::vector<std::string> append{"ingest", "--append", book, "-f", at("second.txt")};
  EXPECT_NE(killed_at(12, 1, append).exit_code, 0);
  const Outcome appended = over(2, append);
  EXPECT_EQ(appended.exit_code, 0) << appended.err;
  expect_whole(digest_alone("both.txt"));
  const Outcome again = over(2, append);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NE(again.err.find("nothing is added"), std::string::npos) << again.err;

  const Outcome updated = over(2, {"ingest", "--update", book, "-f", at("changed.txt")});
  EXPECT_EQ(updated.exit_code, 0) << updated.err;
  EXPECT_NE(updated.err.find("the last checkpoint before"), std::string::npos) << updated.err;
  expect_whole(digest_alone("changed.txt"));
  const Outcome anew = over(2, {"ingest", "--update", book, "-f", at("second.txt")});
  EXPECT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_NE(anew.err.find("as it keeps no checkpoint before"), std::string::npos) << anew.err;
  expect_whole(digest_alone("second.txt"));
}

}  // namespace
}  // namespace hayloft
