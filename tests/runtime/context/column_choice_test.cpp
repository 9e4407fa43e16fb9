#include "runtime/context/column_choice.h"

#include <utility>

#include "offload/error.h"
#include "runtime/context/measure_columns.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

class ColumnChoiceTest : public IngestTest {
 protected:
  ColumnChoiceTest() {
    options.session.cache.block_tokens = 256;
    options.session.cache.window = 64;
    options.session.chunk_tokens = 512;
    options.choose_columns = true;
    const std::string once = text;
    while (tokenizer.encode_prompt(text).size() < 2600) text += once;
  }

  IngestResult ingested(const std::filesystem::path& path) { return ingest(source, arena, text, path, options); }
};

TEST_F(ColumnChoiceTest, IsThatOfAContextThatHadTheColumnsFromTheBeginningBitForBit) {
  const IngestResult chosen = ingested(folder.path() / "chosen.hay");
  ASSERT_TRUE(chosen.columns.recall && chosen.columns.recall->chosen);
  ASSERT_NE(chosen.columns.recall->chosen->columns, offload::ColumnFormat::f16) << "nothing would be made anew";
  EXPECT_EQ(chosen.resumed_from, 0);
  options.choose_columns = false;
  options.session.cache.columns = chosen.columns.recall->chosen->columns;
  const IngestResult named = ingested(folder.path() / "named.hay");
  EXPECT_FALSE(named.columns.recall);
  EXPECT_EQ(chosen.read, named.read);
  EXPECT_EQ(digest(folder.path() / "chosen.hay"), digest(folder.path() / "named.hay"));
}

TEST_F(ColumnChoiceTest, TakesNoMoreOfTheBudgetThanTheColumnsThatItWasReadWith) {
  const ModelConfig& config = model.config();
  const auto tokens = static_cast<std::int64_t>(tokenizer.encode_prompt(text).size());
  const std::uint64_t budget = host_bytes(config, options.session.cache, tokens);
  offload::Arena narrow(offload::Topology(), {.budget_bytes = budget});
  const std::filesystem::path path = folder.path() / "narrow.hay";
  const IngestResult result = ingest(source, narrow, text, path, options);
  ASSERT_TRUE(result.columns.recall && result.columns.recall->chosen);
  CacheOptions chosen = options.session.cache;
  chosen.columns = result.columns.recall->chosen->columns;
  ASSERT_LT(host_bytes(config, chosen, tokens), budget);
  EXPECT_LE(narrow.peak_bytes(), budget);
}

TEST_F(ColumnChoiceTest, ItsCheckpointHasWhatWasReadSparselyUntilThen) {
  options.session.prefill = {.kind = PrefillOptions::Kind::sparse, .sparse = {.density = 0.2}};
  const std::filesystem::path path = folder.path() / "stopped.hay";
  std::int64_t before = 0;
  const auto stop_behind_the_choice = [&](std::int64_t read, std::int64_t) {
    if (std::exchange(before, read) == read) throw Stopped();  // told once by the choice, once before it goes on
  };
  EXPECT_THROW(ingest(source, arena, text, path, options, stop_behind_the_choice), Stopped);
  const auto part = offload::SnapshotWriter::open_to_append(path.string() + ".part");
  EXPECT_TRUE(part.snapshot().attachment(prefill_read_name));
}

TEST_F(ColumnChoiceTest, IsKeptInTheContextAlsoWhereItGoesOn) {
  const std::filesystem::path path = folder.path() / "kept.hay";
  const IngestResult result = ingested(path);
  ASSERT_TRUE(result.columns.recall);
  const auto saved = saved_column_recall(offload::Snapshot::open(path));
  ASSERT_TRUE(saved);
  EXPECT_EQ(*saved, *result.columns.recall);
  append_to(source, arena, " And then there was more to read.", path, options);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  ASSERT_TRUE(saved_column_recall(snapshot));
  EXPECT_EQ(*saved_column_recall(snapshot), *saved);
  EXPECT_EQ(snapshot.description().shape.columns, saved->chosen->columns);
}

TEST_F(ColumnChoiceTest, OldContextsAndShortTextsHaveNone) {
  text.resize(2000);
  const IngestResult result = ingested(folder.path() / "short.hay");
  EXPECT_FALSE(result.columns.recall);
  const offload::Snapshot snapshot = offload::Snapshot::open(folder.path() / "short.hay");
  EXPECT_FALSE(saved_column_recall(snapshot));
  EXPECT_EQ(snapshot.description().shape.columns, offload::ColumnFormat::f16);
}

TEST_F(ColumnChoiceTest, AnInterruptionBeforeItBeginsAnewAndEndsInTheSameContext) {
  const std::filesystem::path path = folder.path() / "interrupted.hay";
  EXPECT_THROW(ingest(source, arena, text, path, options, [](std::int64_t, std::int64_t) { throw Stopped(); }),
               Stopped);
  EXPECT_FALSE(std::filesystem::exists(path));
  ingested(path);
  ingested(folder.path() / "one-go.hay");
  EXPECT_EQ(digest(path), digest(folder.path() / "one-go.hay"));
}

TEST_F(ColumnChoiceTest, AContextThatCannotBeWrittenIsRefusedBeforeAnythingIsRead) {
  int told = 0;
  const std::filesystem::path path = folder.path() / "nowhere" / "saved.hay";
  EXPECT_TRUE(
      test::refuses([&] { ingest(source, arena, text, path, options, [&](std::int64_t, std::int64_t) { ++told; }); },
                    {"nowhere/saved.hay: cannot be written"}));
  EXPECT_EQ(told, 0);
}

TEST_F(ColumnChoiceTest, SaysWhatWasMeasuredByLayer) {
  const IngestResult result = ingested(folder.path() / "measured.hay");
  const ColumnRecall& recall = *result.columns.recall;
  EXPECT_EQ(recall.tokens, choosing_tokens(result.tokens, 512) - 512);
  EXPECT_EQ(recall.k, 128);
  EXPECT_EQ(recall.queries, 8);
  for (const MeasuredSetting& each : recall.settings) {
    EXPECT_EQ(each.recall.size(), static_cast<std::size_t>(model.config().global_layers()));
    for (const float share : each.recall) {
      EXPECT_GE(share, 0.0f);
      EXPECT_LE(share, 1.0f);
    }
    for (const MeasuredSetting& more : recall.settings) {  // of finer columns, no fewer are found, but for chance
      if (more.setting.size == each.setting.size && each.setting.columns == offload::ColumnFormat::int4 &&
          more.setting.columns == offload::ColumnFormat::f16) {
        EXPECT_GE(more.mean(), each.mean() - 0.05);
      }
    }
  }
}

TEST(ChoosingColumns, TakesTheFewestBitsThatFindEnoughInEveryLayer) {
  using offload::ColumnFormat;
  ColumnRecall recall;
  recall.settings = {{{ColumnFormat::planes, 32}, {0.9f, 0.45f}},  // enough on average, blind in a layer
                     {{ColumnFormat::int4, 16}, {0.7f, 0.7f}},     // too few on average
                     {{ColumnFormat::int8, 16}, {0.8f, 0.8f}},
                     {{ColumnFormat::f16, 16}, {0.9f, 0.9f}}};
  EXPECT_EQ(choose_columns(recall), (ColumnSetting{ColumnFormat::int8, 16}));
  for (MeasuredSetting& each : recall.settings) each.recall = {0.4f, 0.4f};
  EXPECT_FALSE(choose_columns(recall));
  EXPECT_FALSE(choose_columns({}));
}

TEST(ChoosingColumns, ReadsWholeChunksAndNoneOfAShortText) {
  EXPECT_EQ(choosing_tokens(2047, 512), 0);
  EXPECT_EQ(choosing_tokens(2048, 512), 2048);
  EXPECT_EQ(choosing_tokens(2600, 512), 2560);
  EXPECT_EQ(choosing_tokens(1 << 20, 2048), 8192);
  EXPECT_EQ(choosing_tokens(1 << 20, 3000), 6000);
  EXPECT_EQ(choosing_tokens(1 << 20, 16384), 0);
}

}  // namespace
}  // namespace hayloft::runtime
