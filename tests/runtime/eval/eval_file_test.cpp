#include "runtime/eval/file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// The file of --out: it keeps rows, goes on where it was cut off, and takes none of another recipe.
namespace hayloft::runtime::eval {
namespace {

using test::refuses;

EvalRow make_row(int sample) {
  EvalRow row;
  row.task = "niah_single_1";
  row.sample = sample;
  row.ctx_size = 4096;
  row.prompt_tokens = 3900;
  row.depth = 12.5;
  row.block_tokens = 256;
  row.attn = parse_method("sparq:r=8:k=1%", {});
  row.k = 40;
  row.window = 10;
  row.score = 1.0 / 3;
  row.prediction = "12\n34 \xc3\xa9";
  row.expected = {"1234", "5678"};
  row.kl = 0.125;
  row.recall = 0.1;
  row.steps = 128;
  row.attended_share = 0.0625;
  row.positions_scored_per_token = 1000.5;
  row.near_bytes_per_token = 1e6 / 3;
  row.ms_per_token = 0.7;
  row.state_bytes = std::uint64_t{1} << 40;
  return row;
}

class EvalFileTest : public ::testing::Test {
 protected:
  EvalFileTest() {
    recipe.version = "1";
    recipe.model = "m";
    recipe.seed = 42;
  }
  std::string contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& text) const { std::ofstream(path, std::ios::binary) << text; }

  test::TemporaryFolder folder;
  std::filesystem::path path = folder / "rows.jsonl";
  EvalRecipe recipe;
};

TEST_F(EvalFileTest, RowsComeBackAsTheyWere) {
  EvalRow perplexity = make_row(7);
  perplexity.prefill = "sparse density=5%";
  perplexity.read_whole = true;
  perplexity.measure = Measure::perplexity;
  perplexity.score = std::numeric_limits<double>::infinity();
  {
    EvalFile file(path, recipe);
    file.add(make_row(3));
    file.add(perplexity);
  }
  const EvalFile file(path, recipe);
  ASSERT_EQ(file.rows().size(), 2u);
  const std::string digest = recipe_digest(recipe);
  EXPECT_EQ(eval_row_json(file.rows()[0], digest), eval_row_json(make_row(3), digest));
  EXPECT_EQ(file.rows()[0].score, 1.0 / 3);
  EXPECT_EQ(file.rows()[1].score, perplexity.score);
  EXPECT_EQ(eval_row_json(file.rows()[1], digest), eval_row_json(perplexity, digest));
  EXPECT_FALSE(file.rows()[0].top1.has_value());
  EXPECT_TRUE(file.has("niah_single_1", 4096, 3, "exact", make_row(3).attn));
  EXPECT_FALSE(file.has("niah_single_1", 4096, 4, "exact", make_row(3).attn));
  EXPECT_FALSE(file.has("niah_single_1", 8192, 3, "exact", make_row(3).attn));
  EXPECT_FALSE(file.has("niah_single_1", 4096, 3, "exact", {}));
}

TEST_F(EvalFileTest, CutOffAnywhereInItsLastLineItGoesOnBehindTheLineBefore) {
  std::string two;
  {
    EvalFile file(path, recipe);
    file.add(make_row(0));
    file.add(make_row(1));
    two = contents();
  }
  const std::size_t last = two.rfind('\n', two.size() - 2) + 1;
  for (std::size_t bytes = last; bytes < two.size(); ++bytes) {
    write(two.substr(0, bytes));
    EvalFile file(path, recipe);
    ASSERT_EQ(file.rows().size(), 1u) << bytes;
    ASSERT_FALSE(file.has("niah_single_1", 4096, 1, "exact", make_row(1).attn));
    file.add(make_row(1));
    ASSERT_EQ(contents(), two) << bytes;
  }
}

TEST_F(EvalFileTest, CutOffInItsFirstLineItBeginsAgain) {
  { const EvalFile file(path, recipe); }
  const std::string header = contents();
  for (std::size_t bytes = 0; bytes < header.size(); ++bytes) {
    write(header.substr(0, bytes));
    { const EvalFile file(path, recipe); }
    ASSERT_EQ(contents(), header) << bytes;
  }
}

TEST_F(EvalFileTest, AnotherRecipeIsRefusedWithWhatDiffersAndTheFileStays) {
  {
    EvalFile file(path, recipe);
    file.add(make_row(0));
  }
  const std::string before = contents() + "{\"torn";
  write(before);
  recipe.seed = 43;
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"--out", "rows.jsonl", "another recipe", "seed 42 (here 43)"}));
  EXPECT_EQ(contents(), before);
  write("{\"schema\":\"hayloft.eval/1\",\"recipe\":5}\n");
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"rows.jsonl", "another recipe"}));
}

TEST_F(EvalFileTest, HowManyNeedlesShareAContextIsPartOfTheRecipe) {
  recipe.needles = 11;
  { const EvalFile file(path, recipe); }
  recipe.needles = 12;
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"needles 11 (here 12)"}));
}

TEST_F(EvalFileTest, WeightsOfAnotherFormAreAnotherRecipeWhicheverWasWrittenFirst) {
  const std::string stored = recipe_json(recipe);
  EXPECT_EQ(stored.find("weights"), std::string::npos) << "files of before it was noted stay readable";
  { const EvalFile file(path, recipe); }
  recipe.weights = "q4";
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"another recipe", "weights default (here \"q4\")"}));

  path = folder / "q4.jsonl";
  { const EvalFile file(path, recipe); }
  recipe.weights = "stored";
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"another recipe", "weights \"q4\" (here default)"}));
}

TEST_F(EvalFileTest, AFileOfAnotherKindIsRefusedAndStays) {
  for (const char* text :
       {"a precious diary\n", "a precious diary", "{\"schema\":\"other/1\"}\n", "{\"schema\":1}\n", "[1]\n"}) {
    write(text);
    EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"rows.jsonl", "no file of hayloft eval"})) << text;
    EXPECT_EQ(contents(), text);
  }
}

TEST_F(EvalFileTest, ADamagedLineInTheMiddleIsRefusedByItsNumber) {
  {
    EvalFile file(path, recipe);
    file.add(make_row(0));
    file.add(make_row(1));
  }
  std::string text = contents();
  text[text.find("\"score\"") + 2] = 'q';
  write(text);
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"rows.jsonl, line 2", "damaged"}));
}

TEST_F(EvalFileTest, FiguresThatNoRunHasAreRefusedByTheirLine) {
  EvalRow wrong = make_row(0);
  const auto refused = [&](const char* said) {
    std::filesystem::remove(path);
    EvalFile(path, recipe).add(wrong);
    const bool is = refuses([&] { EvalFile(path, recipe); }, {"rows.jsonl, line 2", "damaged", said});
    wrong = make_row(0);
    return is;
  };
  wrong.score = 7;
  EXPECT_TRUE(refused("score cannot be 7"));
  wrong.score = -0.5;
  EXPECT_TRUE(refused("score cannot be -0.5"));
  wrong.recall = 1.5;
  EXPECT_TRUE(refused("recall cannot be 1.5"));
  wrong.attended_share = 2;
  EXPECT_TRUE(refused("attended_share cannot be 2"));
  wrong.link_bytes_per_token = -1;
  EXPECT_TRUE(refused("link_bytes_per_token cannot be -1"));
}

TEST_F(EvalFileTest, RowsOfAnotherRunAndRowsThatStandThereTwiceAreRefusedByTheirLine) {
  {
    EvalFile file(path, recipe);
    file.add(make_row(0));
  }
  const std::string one = contents();
  write(one + eval_row_json(make_row(1), "0123456789abcdef") + "\n");
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"rows.jsonl, line 3", "recipe", "0123456789abcdef"}));
  write(one + one.substr(one.find('\n') + 1));
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"rows.jsonl, line 3", "the same answer"}));
}

TEST_F(EvalFileTest, OnlyOneRunWritesToAFile) {
  const EvalFile first(path, recipe);
  EXPECT_TRUE(refuses([&] { EvalFile(path, recipe); }, {"another run"}));
  EXPECT_TRUE(refuses([&] { EvalFile(folder / "no/such/folder", recipe); }, {"no/such/folder"}));
}

TEST(MethodKey, TellsApartWhateverDiffers) {
  std::set<std::string> keys;
  const std::vector<std::string> methods = {
      "sparq",          "sparq:r=8",           "sparq:k=64",     "sparq:k=64,32",      "sparq:k=1%",
      "sparq:window=3", "window:sinks=9",      "sparq:mean=off", "sparq:group=logits", "sparq:tau=d",
      "topk",           "topk:select=kv-head", "dense"};
  for (const std::string& method : methods) keys.insert(method_key(parse_method(method, {})));
  EXPECT_EQ(keys.size(), methods.size());
}

TEST(FileDigest, DependsOnContentsAndOfAFolderOnNames) {
  const test::TemporaryFolder folder;
  folder.write("a", "text");
  folder.write("b", "text");
  EXPECT_EQ(file_digest("--text", folder / "a"), file_digest("--text", folder / "b"));
  const std::string both = file_digest("--text", folder.path());
  folder.write("b", "other");
  EXPECT_NE(file_digest("--text", folder.path()), both);
  EXPECT_TRUE(refuses([&] { file_digest("--text", folder / "none"); }, {"--text", "none", "cannot be read"}));
}

}  // namespace
}  // namespace hayloft::runtime::eval
