#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <stdexcept>

#include "offload/error.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

TEST_F(IngestTest, AnInterruptedRunGoesOnAndEndsInTheSameContextBitForBit) {
  const std::string expected = one_go();
  const std::filesystem::path path = folder.path() / "resumed.hay";
  const int runs =
      interrupted([&](const PrefillProgress& progress) { return ingest(source, arena, text, path, options, progress); },
                  [&] { EXPECT_FALSE(std::filesystem::exists(path)) << "an unfinished context has its final name"; });
  EXPECT_GT(runs, 5);
  EXPECT_EQ(digest(path), expected);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "resumed.hay.part"));
}

TEST_F(IngestTest, ARunThatDiedBeforeItsFirstCheckpointCanBeRunAgain) {
  const std::filesystem::path path = folder.path() / "early.hay";
  EXPECT_THROW(ingest(source, arena, text, path, options, [](std::int64_t, std::int64_t) { throw Stopped(); }),
               Stopped);
  ASSERT_TRUE(std::filesystem::exists(folder.path() / "early.hay.part"));
  ingest(source, arena, text, path, options);
  EXPECT_EQ(digest(path), one_go());
}

// Counts the chunks, of which there are to be none.
TEST_F(IngestTest, ADiskThatCannotHoldTheContextIsToldBeforeTheTextIsRead) {
  const std::filesystem::path path = folder.path() / "full.hay", part = folder.path() / "full.hay.part";
  const auto tokens = static_cast<std::int64_t>(tokenizer.encode_prompt(text).size());
  const std::uint64_t least = least_saved_bytes(model.config(), options.session.cache, tokens, 48);
  std::uint64_t free = least - 1;
  options.calls.free_bytes = [&](const std::filesystem::path& where) {
    EXPECT_TRUE(std::filesystem::equivalent(where, folder.path()));
    return std::optional(free);
  };
  int chunks = 0;
  const auto count = [&](std::int64_t, std::int64_t) { ++chunks; };
  EXPECT_TRUE(test::refuses([&] { ingest(source, arena, text, path, options, count); },
                            {"full.hay", "takes at least", "are free", "free space"}));
  EXPECT_EQ(chunks, 0);
  EXPECT_FALSE(std::filesystem::exists(part));
  free = least;
  const IngestResult made = ingest(source, arena, text, path, options);
  EXPECT_GE(made.file_bytes, least);
  EXPECT_LE(made.file_bytes, 2 * least) << "the bound says little";
  free = 1;
  EXPECT_TRUE(test::refuses([&] { append_to(source, arena, text + text, path, options, count); }, {"are free"}));
  EXPECT_EQ(chunks, 0);
}

TEST_F(IngestTest, AFailureBeforeTheFirstCheckpointLeavesNothingBehind) {
  const std::filesystem::path path = folder.path() / "full.hay", part = folder.path() / "full.hay.part";
  int syncs = 0;
  options.calls.sync = [&](int) { return ++syncs, 0; };
  options.calls.write = [&](int descriptor, const void* data, std::size_t bytes, off_t offset) -> ssize_t {
    if (syncs < 2) return ::pwrite(descriptor, data, bytes, offset);  // the file is there, without tokens
    errno = ENOSPC;
    return -1;
  };
  EXPECT_TRUE(test::refuses([&] { ingest(source, arena, text, path, options); },
                            {"No space left on device", "nothing was saved", "free space"}));
  EXPECT_EQ(syncs, 2);
  EXPECT_FALSE(std::filesystem::exists(part));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(IngestTest, AppendingTheRestEndsInTheSameContextBitForBit) {
  const std::string expected = one_go();
  const std::vector<std::string> digests = in_pieces({1, text.size() / 3, text.size() / 2, text.size() - 40});
  EXPECT_EQ(digests, std::vector<std::string>(4, expected));
}

TEST_F(IngestTest, AContextThatEndsWithinAChunkIsAppendedTo) {
  const std::filesystem::path path = folder.path() / "within.hay";
  const std::vector<std::int32_t> all = tokenizer.encode_prompt(text);
  const std::vector<std::int32_t> first(all.begin(), all.begin() + 100);  // two chunks of 48 and a piece
  Session session(model, arena, options.session);
  session.append(first);
  const std::vector<offload::SnapshotTail> tails = session.cache().tails();
  std::vector<offload::TailImage> images;
  for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
  offload::save_snapshot(path,
                         {source.identity(), session.cache().store().shape(), model.config().layers, "chunk_tokens=48"},
                         session.cache().store(), first, images);

  // As many as leave the last chunk whole, and one fewer: what is behind the session never runs past the end.
  for (const std::int64_t length : {std::int64_t{191}, std::int64_t{192}, std::int64_t{240}}) {
    const std::string more = tokenizer.decode({all.begin() + 100, all.begin() + length}, false, true);
    append_to(source, arena, more, path, options);
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    snapshot.verify();
    EXPECT_EQ(snapshot.cached_tokens(), std::max<std::int64_t>(100, snapshot.token_count() / 48 * 48));
    EXPECT_EQ(answer(open_context(source, arena, snapshot, options.session)).size(),
              static_cast<std::size_t>(model.config().vocab_size));
  }
}

TEST_F(IngestTest, AnInterruptedAppendGoesOnAndIsRefusedUntilThen) {
  const std::string expected = one_go();
  const std::size_t cut = text.find(". ", text.size() / 3) + 1;
  const std::filesystem::path path = folder.path() / "appended.hay";
  ingest(source, arena, std::string_view(text).substr(0, cut), path, options);
  int chunks = 0;
  EXPECT_THROW(append_to(source, arena, std::string_view(text).substr(cut), path, options,
                         [&](std::int64_t, std::int64_t) {
                           if (++chunks == 4) throw Stopped();
                         }),
               Stopped);
  EXPECT_TRUE(test::refuses([&] { offload::Snapshot::open(path); }, {"appended.hay"}));
  EXPECT_TRUE(test::refuses([&] { append_to(source, arena, " Something else.", path, options); }, {"another text"}));
  append_to(source, arena, std::string_view(text).substr(cut), path, options);
  EXPECT_EQ(digest(path), expected);
}

TEST_F(IngestTest, AReopenedContextAnswersAsTheSessionThatWasNeverSaved) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  Session fresh(model, arena, options.session);
  fresh.append(tokenizer.encode(text));
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  const Session reopened = open_context(source, arena, snapshot, {});
  EXPECT_EQ(reopened.tokens(), fresh.tokens());
  EXPECT_EQ(answer(reopened.fork()), answer(fresh.fork()));
}

TEST_F(IngestTest, HeavyHittersAreSavedWithAContextAndGoOnWithIt) {
  const std::shared_ptr<const Method> h2o = make_method(parse_method("h2o:k=64", {}), model.config().head_dim);
  const auto answer_by_h2o = [&](Session session) {
    const auto question = tokenizer.encode("\nThe special magic number for brave harbor is", false);
    session.append(std::span(question).first(question.size() - 1));
    return session.set_method(h2o).step(question.back());
  };
  const std::filesystem::path path = folder.path() / "watched.hay";
  const std::size_t cut = text.find(". ", text.size() / 2) + 1;
  options.indices = {h2o};
  ingest(source, arena, std::string_view(text).substr(0, cut), path, options);
  append_to(source, arena, std::string_view(text).substr(cut), path, options);
  Session fresh(model, arena, options.session);
  fresh.attach_method(*h2o);
  fresh.append(tokenizer.encode(text));
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  EXPECT_NE(snapshot.token_count() % options.session.chunk_tokens, 0) << "some tokens are read when it is opened";
  EXPECT_EQ(answer_by_h2o(open_context(source, arena, snapshot, {}, h2o.get())), answer_by_h2o(fresh.fork()));

  options.indices.clear();
  append_to(source, arena, " " + text, path, options);
  EXPECT_TRUE(test::refuses(
      [&] { answer_by_h2o(open_context(source, arena, offload::Snapshot::open(path), {}, h2o.get())); }, {"h2o"}));
}

TEST_F(IngestTest, AContextKeepsTheColumnFormatItWasBegunWith) {
  const std::string f16_digest = one_go();
  for (const auto format : offload::all_column_formats()) {
    if (format == offload::ColumnFormat::f16) continue;
    SCOPED_TRACE(offload::name(format));
    IngestOptions quantised = options;
    quantised.session.cache.columns = format;
    const offload::Snapshot snapshot =
        offload::Snapshot::open(read_in_two(offload::name(format), quantised, f16_digest));
    EXPECT_NO_THROW(snapshot.verify());
    EXPECT_EQ(snapshot.description().shape.columns, format);
    Session reopened = open_context(source, arena, snapshot, options.session);
    Session fresh(model, arena, quantised.session);
    fresh.append(tokenizer.encode(text));
    for (const char* name : {"sparq:r=8:k=64", "sparq:r=8:by=qk:k=64", "planes:bits=12:k=64"}) {
      const auto method = make_method(parse_method(name, {}), model.config().head_dim);
      if (!in_planes(format) && needs_planes(method->options())) {
        EXPECT_TRUE(test::refuses([&] { reopened.set_method(method); }, {offload::name(format), "--columns planes"}));
        continue;
      }
      reopened.set_method(method);
      fresh.set_method(method);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(reopened.step(i), fresh.step(i)) << name;
    }
  }
}

TEST_F(IngestTest, AContextKeepsTheRowFormatItWasBegunWith) {
  const std::string f16_digest = one_go();
  std::uintmax_t bytes = std::filesystem::file_size(folder.path() / "one.hay");
  for (const auto format : {offload::RowFormat::int8, offload::RowFormat::int4}) {
    SCOPED_TRACE(offload::name(format));
    IngestOptions quantised = options;
    quantised.session.cache.rows = format;
    quantised.session.cache.columns = offload::ColumnFormat::int4;
    const std::string name_of_file = fmt::format("{}-rows", offload::name(format));
    const offload::Snapshot snapshot = offload::Snapshot::open(read_in_two(name_of_file, quantised, f16_digest));
    EXPECT_NO_THROW(snapshot.verify());
    const std::uintmax_t fewer = std::filesystem::file_size(folder.path() / (name_of_file + ".hay"));
    EXPECT_LT(fewer, bytes);
    bytes = fewer;
    EXPECT_EQ(snapshot.description().shape.rows, format);
    EXPECT_EQ(snapshot.description().shape.columns, offload::ColumnFormat::int4);
    Session reopened = open_context(source, arena, snapshot, options.session);
    Session fresh(model, arena, quantised.session);
    fresh.append(tokenizer.encode(text));
    for (const char* name : {"dense", "topk:k=64", "sparq:r=8:k=64", "pages:k=64:page=16", "ann:k=64", "window:k=64"}) {
      const auto method = make_method(parse_method(name, {}), model.config().head_dim);
      reopened.set_method(method);
      fresh.set_method(method);
      Session fork = reopened.fork();
      for (int i = 0; i < 3; ++i) {
        const auto logits = reopened.step(i);
        EXPECT_EQ(logits, fresh.step(i)) << name;
        EXPECT_EQ(logits, fork.step(i)) << name;
      }
    }
  }
}

TEST_F(IngestTest, AReopenedContextCopiedIntoMemoryAnswersTheSame) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  const std::uint64_t before = arena.used_bytes();
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  SessionOptions in_memory;
  in_memory.cache.copy_saved = true;
  const Session copied = open_context(source, arena, snapshot, in_memory);
  EXPECT_GE(arena.used_bytes() - before, copied.cache().host_bytes());
  EXPECT_EQ(answer(copied.fork()), answer(open_context(source, arena, snapshot, {})));
}

TEST_F(IngestTest, SessionsOnASavedContextTakeNoMemoryForItsBlocks) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  const std::uint64_t before = arena.used_bytes();
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  const Session context = open_context(source, arena, snapshot, {});
  std::vector<Session> sessions;
  for (int i = 0; i < 10; ++i) sessions.push_back(context.fork());
  // Reading the last tokens may fill a block of its own, shared by all ten.
  EXPECT_LE(arena.used_bytes() - before, 2 * host_bytes(model.config(), sessions[0].cache().options(), 32 + 256));
}

TEST_F(IngestTest, AContextOfAnotherModelIsRefusedByName) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  const ModelSource changed = another_model();
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  EXPECT_TRUE(test::refuses([&] { open_context(changed, arena, snapshot, {}); }, {"saved.hay", "other-model"}));
}

TEST_F(IngestTest, NothingThatExistsIsOverwritten) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  EXPECT_TRUE(test::refuses([&] { ingest(source, arena, text, path, options); }, {"saved.hay", "exists", "--append"}));
  int chunks = 0;
  const std::filesystem::path other = folder.path() / "other.hay";
  EXPECT_THROW(ingest(source, arena, text, other, options,
                      [&](std::int64_t, std::int64_t) {
                        if (++chunks == 2) throw Stopped();
                      }),
               Stopped);
  EXPECT_TRUE(test::refuses([&] { ingest(source, arena, "Quite another text. " + text, other, options); },
                            {"other.hay.part", "another text"}));
}

TEST_F(IngestTest, AContextThatWasFinishedBesideItsPartIsTakenAsItIs) {
  const std::filesystem::path path = folder.path() / "done.hay", part = folder.path() / "done.hay.part";
  ingest(source, arena, text, path, options);
  const std::string before = digest(path);
  std::filesystem::copy_file(path, part);  // as a run leaves it that is killed before it removes the part
  EXPECT_TRUE(ingest(source, arena, text, path, options).was_there);
  EXPECT_FALSE(std::filesystem::exists(part));
  EXPECT_EQ(digest(path), before);
  std::filesystem::copy_file(path, part);
  EXPECT_THROW(ingest(source, arena, text + " More.", path, options), Error) << "it is of another text";
  const ModelSource changed = another_model();
  EXPECT_TRUE(test::refuses([&] { ingest(changed, arena, text, path, options); }, {"done.hay", "other-model"}));
  EXPECT_TRUE(std::filesystem::exists(part));
}

TEST_F(IngestTest, APartThatWasBegunToKeepCheckpointsKeepsThemWithoutBeingAskedAgain) {
  const std::filesystem::path path = folder.path() / "kept.hay";
  options.session.cache.block_tokens = 4096;  // all of it is tails, of which each checkpoint has its own
  options.checkpoints = 3;
  int chunks = 0;
  const auto stop = [&](std::int64_t, std::int64_t) {
    if (++chunks == 20) throw Stopped();
  };
  EXPECT_THROW(ingest(source, arena, text, path, options, stop), Stopped);
  options.checkpoints = 0;
  ingest(source, arena, text, path, options);
  EXPECT_EQ(offload::Snapshot::open(path).earlier_checkpoints().size() + 1, 3u);
}

}  // namespace
}  // namespace hayloft::runtime
