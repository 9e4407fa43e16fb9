#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/context/saved_shards.h"
#include "runtime/context/text_end.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

class SavedIndexTest : public IngestTest {
 protected:
  SavedIndexTest() {
    options.indices = {ann};
    const auto grammar = eval::make_grammar(4);
    while (text.size() < 40000) text += grammar->next() + " ";  // shorter ones are searched without an index
  }

  std::vector<float> answer_by_ann(Session session) const {
    const auto question = tokenizer.encode("\nThe special magic number for brave harbor is", false);
    session.append(std::span(question).first(question.size() - 1));
    return session.set_method(ann).step(question.back());
  }
  // The names of those in a file, without what is saved of the text's end.
  static std::vector<std::string> indices(const std::filesystem::path& path) {
    std::vector<std::string> names = offload::Snapshot::open(path).attachments();
    std::erase(names, text_end_name);
    return names;
  }

  // Returns how many keys an index lacks that a session has just been opened with.
  std::int64_t keys_to_index(Session& session) const {
    std::int64_t most = 0;
    session.prepare(*ann, [&](std::int64_t, std::int64_t total) { most = std::max(most, total); });
    return most;
  }

  const std::shared_ptr<const Method> ann =
      make_method(parse_method("ann:IVF8,Flat:nprobe=4:k=64", {}), model.config().head_dim);
};

TEST_F(SavedIndexTest, IsTakenFromTheContextAndGivesTheSameAnswersToTheBit) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  EXPECT_EQ(indices(path), std::vector<std::string>{ann->state_key()});
  Session reopened = open_context(source, arena, snapshot, options.session, ann.get());
  EXPECT_EQ(keys_to_index(reopened), 0) << "nothing is built anew";

  Session fresh(model, arena, options.session);
  fresh.attach_method(*ann);
  const std::vector<std::int32_t> tokens = tokenizer.encode(text);
  const std::size_t whole = tokens.size() / 48 * 48;  // when the index is built
  fresh.append(std::span(tokens).first(whole));
  fresh.prepare(*ann);
  fresh.append(std::span(tokens).subspan(whole));
  EXPECT_EQ(answer_by_ann(reopened.fork()), answer_by_ann(fresh.fork()));
}

TEST_F(SavedIndexTest, IsAddedToAContextThatIsThereAndChangesNothingElse) {
  const std::string expected = one_go();
  const std::filesystem::path path = folder.path() / "plain.hay";
  options.indices.clear();
  ingest(source, arena, text, path, options);
  EXPECT_TRUE(indices(path).empty());

  options.indices = {ann};
  options.indexing = [](std::int64_t, std::int64_t) { throw Stopped(); };
  EXPECT_THROW(add_indices(source, arena, path, options), Stopped);
  EXPECT_TRUE(indices(path).empty());

  options.indexing = {};
  add_indices(source, arena, path, options);
  EXPECT_EQ(indices(path).size(), 1u);
  EXPECT_EQ(digest(path), expected);
}

// The context lies in its tails alone, which are not to be written again beside themselves.
TEST_F(SavedIndexTest, AddingItMakesTheFileNoLargerThanItIs) {
  const std::filesystem::path path = folder.path() / "short.hay";
  options.session.cache.block_tokens = 1 << 15;
  options.indices.clear();
  ingest(source, arena, text, path, options);
  const std::uint64_t before = std::filesystem::file_size(path);
  const std::string contents = digest(path);
  const std::vector<std::string> beside = offload::Snapshot::open(path).attachments();
  ASSERT_FALSE(beside.empty()) << "the end of the text";
  options.indices = {ann};
  EXPECT_TRUE(add_indices(source, arena, path, options));
  const std::uint64_t index = offload::Snapshot::open(path).attachment(ann->state_key())->size();
  const std::uint64_t indexed = std::filesystem::file_size(path);
  EXPECT_LE(indexed, before + index + (1 << 16));
  EXPECT_EQ(digest(path), contents);
  EXPECT_EQ(offload::Snapshot::open(path).attachments().size(), beside.size() + 1);
  EXPECT_FALSE(add_indices(source, arena, path, options)) << "it is there already";
  EXPECT_EQ(std::filesystem::file_size(path), indexed);
}

TEST_F(SavedIndexTest, AnIndexThatIsThereIsNotWrittenAgain) {
  const std::filesystem::path path = folder.path() / "indexed.hay";
  ingest(source, arena, text, path, options);
  const std::uint64_t bytes = std::filesystem::file_size(path);
  EXPECT_FALSE(add_indices(source, arena, path, options));
  EXPECT_EQ(std::filesystem::file_size(path), bytes);
  EXPECT_EQ(indices(path), std::vector<std::string>{ann->state_key()});
}

TEST_F(SavedIndexTest, GoesOnWithWhatIsAppended) {
  const std::filesystem::path path = folder.path() / "grown.hay";
  ingest(source, arena, text, path, options);
  options.indices.clear();
  append_to(source, arena, " " + text, path, options);
  Session behind = open_context(source, arena, offload::Snapshot::open(path), {}, ann.get());
  EXPECT_GT(keys_to_index(behind), 0) << "the index that was saved knows the first text only";
  options.indices = {ann};
  add_indices(source, arena, path, options);
  Session session = open_context(source, arena, offload::Snapshot::open(path), {}, ann.get());
  EXPECT_EQ(keys_to_index(session), 0);
}

TEST_F(SavedIndexTest, ThatIsDamagedIsRefusedAndMadeAgain) {
  const std::filesystem::path path = folder.path() / "damaged.hay";
  ingest(source, arena, text, path, options);
  std::string image;
  {
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    const auto index = snapshot.attachment(ann->state_key());
    const std::string bytes(reinterpret_cast<const char*>(index->data()), index->size());
    std::ifstream file(path, std::ios::binary);
    image.assign(std::istreambuf_iterator<char>(file), {});
    image[image.find(bytes) + bytes.size() / 2] ^= 1;
  }
  std::ofstream(path, std::ios::binary) << image;
  EXPECT_TRUE(test::refuses([&] { open_context(source, arena, offload::Snapshot::open(path), {}, ann.get()); },
                            {"damaged.hay", ann->state_key(), "hayloft index"}));
  EXPECT_NO_THROW(open_context(source, arena, offload::Snapshot::open(path), {}));
  add_indices(source, arena, path, options);
  EXPECT_NO_THROW(open_context(source, arena, offload::Snapshot::open(path), {}, ann.get()));
}

// Ranks' stores have other positions, so what is over the whole of them is not used. Each of two has too few for an
// index, and compares all of its keys.
TEST_F(SavedIndexTest, OfOneMachineIsNotUsedByRanks) {
  const std::filesystem::path path = folder.path() / "whole.hay";
  ingest(source, arena, text, path, options);
  ASSERT_EQ(indices(path).size(), 1u);
  const SharedMethod topk = make_method(parse_method("topk:k=64", {}), model.config().head_dim);
  const auto question = tokenizer.encode("\nThe special magic number for brave harbor is", false);
  cluster::run_local_ranks(2, [&](cluster::Communicator& ranks) {
    SessionOptions own = options.session;
    own.attend_by(cluster::rank_attender(ranks));
    const offload::Snapshot snapshot = open_over_ranks(ranks, path);
    Session session = open_context(source, arena, snapshot, own, ann.get());
    session.prepare(*ann);
    session.append(std::span(question).first(question.size() - 1));
    Session exact = session.fork();
    exact.set_method(topk);
    EXPECT_EQ(session.set_method(ann).step(question.back()), exact.step(question.back()));
  });
}

// A rank that finds its file damaged says so on all, which can go on: in a server a request has failed.
TEST_F(SavedIndexTest, ThatOneRankFindsDamagedIsRefusedByAll) {
  const std::filesystem::path good = folder.path() / "good.hay", bad = folder.path() / "bad.hay";
  ingest(source, arena, text, good, options);
  std::filesystem::copy(good, bad);
  {
    const offload::Snapshot snapshot = offload::Snapshot::open(good);
    const auto index = snapshot.attachment(ann->state_key());
    const std::string bytes(reinterpret_cast<const char*>(index->data()), index->size());
    std::ifstream file(good, std::ios::binary);
    std::string image(std::istreambuf_iterator<char>(file), {});
    image[image.find(bytes) + bytes.size() / 2] ^= 1;
    std::ofstream(bad, std::ios::binary) << image;
  }
  cluster::run_local_ranks(2, [&](cluster::Communicator& ranks) {
    SessionOptions own = options.session;
    own.attend_by(cluster::rank_attender(ranks));
    const offload::Snapshot snapshot = open_over_ranks(ranks, ranks.rank() == 1 ? bad : good);
    EXPECT_TRUE(test::refuses([&] { open_context(source, arena, snapshot, own, ann.get()); },
                              {"rank 1: ", "bad.hay", ann->state_key()}));
    EXPECT_NO_THROW(open_context(source, arena, snapshot, own));
  });
}

}  // namespace
}  // namespace hayloft::runtime
