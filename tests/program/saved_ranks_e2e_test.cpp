#include "tests/program/saved_ranks_fixture.h"

// Contexts that `mpirun hayloft ingest` saves in shards.
namespace hayloft {
namespace fs = std::filesystem;
namespace {

using test::Outcome;
using test::run_program;
using test::SavedRanksTest;

TEST_F(SavedRanksTest, ATextReadByRanksIsAskedByAnyNumberOfThem) {
  const Outcome one = run_program(ingest(at("one.hay")));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const Outcome expected = run_program(ask(at("one.hay")));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  const Outcome saved = over(3, ingest(at("book.hay")));
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_NE(saved.err.find("in 3 shards"), std::string::npos) << saved.err;
  EXPECT_EQ(files_of("book.hay").size(), 3u);
  EXPECT_EQ(run_program(ask(at("book.hay"))).out, expected.out);
  for (const int ranks : {2, 3}) {
    for (const char* context : {"book.hay", "one.hay"}) {
      const Outcome asked = over(ranks, ask(at(context)));
      EXPECT_EQ(asked.exit_code, 0) << asked.err;
      EXPECT_EQ(asked.out, expected.out) << context << " by " << ranks;
    }
  }
  // The bundled model has one global layer, whose keys and values do not depend on how attention is merged.
  const auto alone = inspected(at("one.hay")), shards = inspected(at("book.hay"));
  EXPECT_EQ(shards["content_digest"], alone["content_digest"]);
  EXPECT_EQ(shards["stored_tokens"], alone["stored_tokens"]);
  EXPECT_EQ(shards["shards"], 3);
  EXPECT_EQ(alone["shards"], 1);
  const Outcome generated =
      over(2, {"generate", "--context", at("book.hay"), "-p", " The hay is", "-n", "4", "--attn", "dense"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
}

TEST_F(SavedRanksTest, WhatHeavyHittersKeptOnOneMachineIsAskedByRanks) {
  std::vector<std::string> indexed = ingest(at("one.hay"));
  indexed.insert(indexed.end(), {"--index", "h2o"});
  const Outcome one = run_program(indexed);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const auto by_h2o = [&](const char* context) {
    std::vector<std::string> arguments = ask(at(context));
    arguments.back() = "h2o";
    return arguments;
  };
  const Outcome expected = run_program(by_h2o("one.hay"));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  for (const int ranks : {2, 3}) {
    const Outcome asked = over(ranks, by_h2o("one.hay"));
    EXPECT_EQ(asked.exit_code, 0) << asked.err;
    EXPECT_EQ(asked.out, expected.out) << ranks;
  }
  // Shards have nothing of it.
  ASSERT_EQ(over(2, ingest(at("book.hay"))).exit_code, 0);
  expect_refused(over(2, by_h2o("book.hay")), 1, {"--attn h2o", "on one machine"});
  EXPECT_TRUE(test::refused_with(run_program({"index", at("book.hay")}), 1, {"book.hay", "in shards", "no index"}));
  indexed[4] = at("other.hay");
  expect_refused(over(2, indexed), 2, {"--index", "over ranks"});
}

TEST_F(SavedRanksTest, RanksWithDisksOfTheirOwnNeedOnlyTheirShards) {
  for (const char* machine : {"first", "second"}) fs::create_directory(at(machine));
  const std::string first = at("first/book.hay"), second = at("second/book.hay");
  const Outcome saved = apart({program(ingest(first)), program(ingest(second))});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_TRUE(fs::exists(first));
  EXPECT_FALSE(fs::exists(second)) << "the manifest lies where rank 0 is";
  const Outcome asked = apart({program(ask(first)), program(ask(second))});
  EXPECT_EQ(asked.exit_code, 0) << asked.err;
  expect_refused(apart({program(ask(first)), program(ask(at("nowhere.hay")))}), 1,
                 {"rank 1: ", "nowhere.hay.", ".2of2", "is not there"});
  expect_refused(over(3, ask(first)), 1, {".2of2", "is not there"});  // all of them need both
  const Outcome alone = run_program(ask(first));
  EXPECT_EQ(alone.exit_code, 1);
  EXPECT_NE(alone.err.find("2of2: is not there"), std::string::npos) << alone.err;
}

TEST_F(SavedRanksTest, WhatDoesNotGoWithTheContextIsRefusedInOneLine) {
  const std::string book = at("book.hay");
  const Outcome saved = over(2, ingest(book));
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const std::string model = make_model();
  std::vector<std::string> other = ask(book);
  other.insert(other.end(), {"-m", model});
  expect_refused(over(2, other), 1, {"book.hay", "made with the model"});
  expect_refused(apart({program(ask(book)), program(other)}), 1, {"rank 1", "another model"});
  expect_refused(over(2, ingest(book)), 1, {"book.hay", "exists already"});
  expect_refused(over(3, {"ingest", "--append", book, "-f", at("text.txt")}), 1, {"2 shards", "not 3"});
  const Outcome appended = run_program({"ingest", "--append", book, "-f", at("text.txt")});
  EXPECT_EQ(appended.exit_code, 1);
  EXPECT_NE(appended.err.find("in shards"), std::string::npos) << appended.err;

  const std::string shard = at(files_of("book.hay")[1].c_str());
  fs::resize_file(shard, fs::file_size(shard) / 2);
  expect_refused(over(2, ask(book)), 1, {"rank 1: ", ".2of2", "truncated"});
}

}  // namespace
}  // namespace hayloft
