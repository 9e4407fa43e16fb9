#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "offload/snapshot/writer.h"
#include "tests/offload/snapshot/saved_fixture.h"
#include "tests/support/refusal.h"

// The file of a saved context among others: writers and readers at once, names that are taken, models that differ.
namespace hayloft::offload {
namespace {

using test::bytes_of;
using test::refuses;

TEST_F(SnapshotTest, TwoWritersDoNotMeet) {
  const auto part = folder_ / "ctx.part";
  std::optional<SnapshotWriter> writer(SnapshotWriter::create(part, small_description()));
  const std::initializer_list<std::string> busy = {part.string(), "another process is writing to it"};
  EXPECT_TRUE(refuses([&] { SnapshotWriter::open_to_append(part); }, busy));
  EXPECT_TRUE(refuses([&] { SnapshotWriter::create(part, small_description(), true); }, busy));
  const Snapshot reader = writer->snapshot();
  writer.reset();
  EXPECT_NO_THROW(SnapshotWriter::open_to_append(part));
}

// Both have seen that there is no file yet.
TEST_F(SnapshotTest, TheWriterThatComesSecondIsToldOfTheFirst) {
  const std::filesystem::path part = folder_ / "ctx.hay.part";
  std::optional<SnapshotWriter> first;
  SnapshotCalls calls = system_calls();
  calls.sync = [&, sync = calls.sync](int descriptor) {
    if (!first) first.emplace(SnapshotWriter::create(part, small_description()));
    return sync(descriptor);
  };
  const auto second = [&] { SnapshotWriter::create(part, small_description(), false, calls); };
  EXPECT_TRUE(refuses(second, {part.string(), "another process is writing to it"}));
  EXPECT_TRUE(refuses(second, {part.string(), "another process is writing to it"}));  // seen beforehand
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(SnapshotTest, ReadersDoNotMindAWriter) {
  const auto path = saved(100, 100);
  const Snapshot reader = Snapshot::open(path);
  const std::string digest = reader.content_digest();
  SnapshotWriter writer = SnapshotWriter::open_to_append(path);
  SmallContext context(arena_, writer.snapshot());
  context.grow_to(120);
  context.save(writer);
  EXPECT_EQ(reader.content_digest(), digest);
  EXPECT_EQ(Snapshot::open(path, Snapshot::Accept::unfinished).token_count(), 120);

  context.grow_to(121);  // now the tails' old place is taken
  context.save(writer);
  EXPECT_NO_THROW(reader.tokens());
  EXPECT_EQ(reader.store(arena_).tokens(0), 80);
  EXPECT_TRUE(refuses([&] { reader.tail(0); }, {path.string(), "written to since it was opened"}));
}

TEST_F(SnapshotTest, AnExistingFileIsReplacedOnlyWhenAsked) {
  const auto path = saved(30, 30);
  const Snapshot before = Snapshot::open(path);
  EXPECT_TRUE(refuses([&] { SnapshotWriter::create(path, small_description()); }, {path.string(), "exists"}));
  { const SnapshotWriter writer = SnapshotWriter::create(path, small_description(), /*overwrite=*/true); }
  EXPECT_EQ(Snapshot::open(path, Snapshot::Accept::unfinished).token_count(), 0);
  before.verify();  // still the old file
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(SnapshotTest, FinishingReplacesAFileOfTheNameAndKeepsTheContextWhenItCannot) {
  folder_.write("ctx.hay", "old");
  const auto path = saved(30, 30);
  EXPECT_EQ(Snapshot::open(path).token_count(), 30);

  const auto part = folder_ / "other.part";
  SnapshotWriter writer = SnapshotWriter::create(part, small_description());
  EXPECT_TRUE(refuses([&] { writer.finish(folder_ / "missing" / "other.hay"); },
                      {(folder_ / "missing" / "other.hay").string(), "kept as", part.string()}));
  EXPECT_TRUE(Snapshot::open(part).complete());
  writer.finish(folder_ / "other.hay");
  EXPECT_TRUE(Snapshot::open(folder_ / "other.hay").complete());
}

TEST_F(SnapshotTest, APathThatCannotHoldAContextIsNamed) {
  EXPECT_TRUE(refuses([&] { Snapshot::open(folder_ / "no.hay"); }, {(folder_ / "no.hay").string(), "No such file"}));
  EXPECT_TRUE(refuses([&] { SnapshotWriter::open_to_append(folder_ / "no.hay"); }, {"no.hay", "No such file"}));
  EXPECT_TRUE(refuses([&] { Snapshot::open(folder_.path()); }, {"not a regular file"}));
  EXPECT_TRUE(refuses([&] { SnapshotWriter::create(folder_ / "no" / "ctx.hay", small_description()); },
                      {"no/ctx.hay", "cannot be written"}));
  SnapshotDescription description = small_description();
  description.model.name.assign(256, 'x');
  EXPECT_TRUE(refuses([&] { SnapshotWriter::create(folder_ / "a.hay", description); }, {"a.hay", "256", "255"}));
  description = small_description();
  description.note.assign(65537, 'x');
  EXPECT_TRUE(refuses([&] { SnapshotWriter::create(folder_ / "a.hay", description); }, {"a.hay", "65537", "65536"}));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(SnapshotTest, AnotherModelIsRefusedByName) {
  const Snapshot snapshot = Snapshot::open(saved(10, 10));
  ModelIdentity model = small_description().model;
  model.name = "the same under another name";
  EXPECT_NO_THROW(snapshot.require_model(model));
  model.fingerprint[15] ^= 1;
  EXPECT_TRUE(refuses([&] { snapshot.require_model(model); },
                      {"three layers", "00112233445566778899aabbccddeeff", model.name, "ddeefe"}));
  model.former = small_description().model.fingerprint;
  EXPECT_NO_THROW(snapshot.require_model(model));
}

TEST_F(SnapshotTest, MistakesOfTheProgrammerAreCaughtAndChangeNothing) {
  const auto part = folder_ / "ctx.part";
  SnapshotWriter writer = SnapshotWriter::create(part, small_description());
  SmallContext context(arena_);
  context.grow_to(50);
  context.save(writer);
  const std::string before = bytes_of(part);

  SmallContext shorter(arena_);
  shorter.grow_to(20);
  EXPECT_THROW(shorter.save(writer), std::logic_error);
  StoreShape shape = small_description().shape;
  shape.block_tokens *= 2;
  EXPECT_THROW(writer.checkpoint(Store(arena_, shape), context.tokens(), context.tails()), std::logic_error);
  std::vector<TailImage> tails = context.tails();
  tails.pop_back();
  EXPECT_THROW(writer.checkpoint(context.store(), context.tokens(), tails), std::logic_error);
  tails = context.tails();
  tails[2].tokens -= 1;
  EXPECT_THROW(writer.checkpoint(context.store(), context.tokens(), tails), std::logic_error);
  tails = context.tails();
  std::swap(tails[0], tails[2]);
  EXPECT_THROW(writer.checkpoint(context.store(), context.tokens(), tails), std::logic_error);
  tails = context.tails();
  tails[1].rows = tails[1].rows.first(1);
  EXPECT_THROW(writer.checkpoint(context.store(), context.tokens(), tails), std::logic_error);
  SnapshotDescription description = small_description();
  for (const int layers : {1, 0}) {
    description.model_layers = layers;
    EXPECT_THROW(SnapshotWriter::create(folder_ / "b.part", description), std::logic_error);
    description.shape.layers = 0;
  }

  EXPECT_EQ(bytes_of(part), before);
  EXPECT_EQ(writer.token_count(), 50);
}

// Which a server tells from a file that is damaged: later there may be some.
TEST_F(SnapshotTest, WithoutADescriptorLeftItIsAsWithoutMemory) {
  const auto path = saved(100, 100);
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit none{0, usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_THROW(Snapshot::open(path), NoMemory);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_NO_THROW(Snapshot::open(path));
}

TEST_F(SnapshotTest, LongReadsTellHowFarTheyAre) {
  const Snapshot snapshot = Snapshot::open(saved(100, 100));
  const std::uint64_t total = 2 * 5 * BlockLayout(small_description().shape).block_bytes;
  for (const bool digest : {false, true}) {
    std::vector<std::uint64_t> told;
    const auto progress = [&](std::uint64_t done, std::uint64_t of) {
      EXPECT_EQ(of, total);
      told.push_back(done);
    };
    digest ? void(snapshot.content_digest(progress)) : snapshot.verify(progress);
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    EXPECT_EQ(told.size(), 10u);
    EXPECT_EQ(told.back(), total);
  }
}

}  // namespace
}  // namespace hayloft::offload
