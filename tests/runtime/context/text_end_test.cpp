#include "runtime/context/text_end.h"

#include <fstream>

#include "tests/runtime/context/ingest_fixture.h"

// Tests what is saved of the tokens behind the last whole chunk, and what a short text's file takes.
namespace hayloft::runtime {
namespace {

class TextEndTest : public IngestTest {
 protected:
  TextEndTest() {
    options.session = {};              // blocks of 4096 tokens, chunks of 2048:
    text.resize(text.size() * 3 / 4);  // the text is shorter than either
  }

  std::filesystem::path saved(const std::string& name, std::string_view what) {
    const std::filesystem::path path = folder.path() / name;
    ingest(source, arena, what, path, options);
    return path;
  }
  // Returns the bytes of the rows of every layer that a session of so many tokens has in its tails.
  std::uint64_t row_bytes(std::int64_t tokens) {
    Session session(model, arena, options.session);
    session.append(std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 1));
    std::uint64_t bytes = 0;
    for (const offload::SnapshotTail& tail : session.cache().tails()) bytes += tail.rows.size() * sizeof(f16);
    return bytes;
  }
  std::vector<std::int32_t> rest_of(const offload::Snapshot& snapshot) const {
    const std::vector<std::int32_t> tokens = snapshot.tokens();
    return {tokens.begin() + snapshot.cached_tokens(), tokens.end()};
  }
  bool restores(const std::filesystem::path& path) {
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    Session session(model, arena, as_read(snapshot, {}), snapshot);
    return restore_text_end(session, snapshot, rest_of(snapshot));
  }
};

TEST_F(TextEndTest, AShortTextIsNotReadAgainAndAnswersAsIfItHadBeen) {
  const std::filesystem::path path = saved("short.hay", text);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  ASSERT_LT(snapshot.token_count(), options.session.chunk_tokens);
  EXPECT_EQ(snapshot.cached_tokens(), 0);
  EXPECT_TRUE(restores(path));
  Session fresh(model, arena, options.session);
  fresh.append(tokenizer.encode_prompt(text));
  EXPECT_EQ(answer(open_context(source, arena, snapshot, {})), answer(fresh.fork()));
}

// Rows of integers are rounded as their block is written: the end has to be kept as it was before.
TEST_F(TextEndTest, NorIsATextWhoseBlocksAreShorterThanAChunk) {
  options.session.cache = {.block_tokens = 64, .rows = offload::RowFormat::int4};
  const std::filesystem::path path = folder.path() / "blocks.hay";
  const IngestResult result = ingest(source, arena, text, path, options);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  ASSERT_EQ(snapshot.cached_tokens(), 0);
  ASSERT_GT(snapshot.token_count(), 256 + 2 * 64) << "tails give blocks to the store";
  EXPECT_EQ(result.read, snapshot.token_count());
  EXPECT_TRUE(restores(path));
  Session fresh(model, arena, options.session);
  fresh.append(tokenizer.encode_prompt(text));
  const Session opened = open_context(source, arena, snapshot, {});
  EXPECT_EQ(opened.cache().global_views().front().store.tokens, fresh.cache().global_views().front().store.tokens);
  EXPECT_EQ(answer(opened.fork()), answer(fresh.fork()));
}

TEST_F(TextEndTest, WhatItReadSparselyIsCountedOnceWhereverItIsAskedFor) {
  options.session.chunk_tokens = 512;
  options.session.cache.block_tokens = 64;
  options.session.prefill = {.kind = PrefillOptions::Kind::sparse, .sparse = {.density = 0.2, .dense_keys = 0}};
  const std::filesystem::path path = folder.path() / "sparse.hay";
  const IngestResult result = ingest(source, arena, text, path, options);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  ASSERT_GT(snapshot.token_count(), snapshot.cached_tokens());
  Session fresh(model, arena, options.session);
  fresh.append(tokenizer.encode_prompt(text));
  const std::string all = prefill_read_line(fresh.prefill_read());
  EXPECT_EQ(prefill_read_line(result.prefill_read), all);
  EXPECT_EQ(prefill_read_line(whole_prefill_read(snapshot)), all);
  EXPECT_EQ(prefill_read_line(open_context(source, arena, snapshot, {}).prefill_read()), all);

  const IngestResult more = append_to(source, arena, " More of it.", path, options);
  EXPECT_EQ(prefill_read_line(whole_prefill_read(offload::Snapshot::open(path))), prefill_read_line(more.prefill_read));
  std::vector<std::int32_t> longer = snapshot.tokens();
  for (const std::int32_t token : tokenizer.encode(" More of it.", false)) longer.push_back(token);
  Session together(model, arena, options.session);
  together.append(longer);
  EXPECT_EQ(prefill_read_line(more.prefill_read), prefill_read_line(together.prefill_read()));
}

TEST_F(TextEndTest, TheFileOfAShortTextIsItsRowsAndAFewPages) {
  constexpr std::uint64_t pages = 16 * 4096;  // headers, metadata, ids
  const offload::Snapshot small = offload::Snapshot::open(saved("small.hay", text.substr(0, text.size() / 4)));
  EXPECT_LT(small.file_bytes(), row_bytes(small.token_count()) + pages);
  const offload::Snapshot large = offload::Snapshot::open(saved("large.hay", text));
  EXPECT_LT(large.file_bytes(), row_bytes(large.token_count()) + pages);
}

// Every chunk leaves a checkpoint, as on a slow machine, and each of them the area of the one before.
TEST_F(TextEndTest, WhatCheckpointsLeaveBehindGoesWhenAShortTextIsFinished) {
  options.session.chunk_tokens = 512;
  const std::string longer = text + text;  // less than fills a block
  const offload::Snapshot snapshot = offload::Snapshot::open(saved("chunks.hay", longer));
  EXPECT_GT(snapshot.cached_tokens(), 3 * options.session.chunk_tokens);
  EXPECT_LT(snapshot.file_bytes(), row_bytes(snapshot.token_count()) * 3 / 2 + (std::uint64_t{1} << 20));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "chunks.hay.part"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "chunks.hay.saving"));
  snapshot.verify();
}

TEST_F(TextEndTest, AppendingAgainAndAgainReusesItsPlace) {
  const std::filesystem::path path = saved("grows.hay", text);
  std::vector<std::uint64_t> bytes;
  for (int i = 0; i < 8; ++i) {
    append_to(source, arena, fmt::format(" And a {}th sentence.", i), path, options);
    EXPECT_TRUE(restores(path));
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    snapshot.verify();
    bytes.push_back(snapshot.file_bytes());
  }
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  // The first, and two places of each of the two sizes that the text passes through.
  EXPECT_LT(snapshot.file_bytes(), 6 * row_bytes(snapshot.token_count())) << "not nine times";
}

TEST_F(TextEndTest, WhatIsOfOtherTokensOrDamagedIsReadAgain) {
  const std::filesystem::path path = saved("other.hay", text);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  std::vector<std::int32_t> other = rest_of(snapshot);
  other.back() += 1;
  Session session(model, arena, as_read(snapshot, {}), snapshot);
  EXPECT_FALSE(restore_text_end(session, snapshot, other));
  EXPECT_FALSE(restore_text_end(session, snapshot, std::span(other).first(other.size() - 1)));
  EXPECT_EQ(session.tokens(), 0);

  const std::vector<float> expected = answer(open_context(source, arena, snapshot, {}));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(snapshot.file_bytes() / 2));  // most of the file is the end of the text
  const char wrong[4] = {1, 2, 3, 4};
  file.write(wrong, sizeof wrong);
  file.close();
  EXPECT_FALSE(restores(path));
  EXPECT_EQ(answer(open_context(source, arena, offload::Snapshot::open(path), {})), expected);
}

}  // namespace
}  // namespace hayloft::runtime
