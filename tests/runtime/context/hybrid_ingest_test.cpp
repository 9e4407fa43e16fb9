#include <fstream>

#include "offload/error.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/refusal.h"

// Saved contexts of a model with recurrent layers, whose states they hold.
namespace hayloft::runtime {
namespace {

class HybridIngestTest : public IngestTest {
 protected:
  std::string digest_of_text() {
    const std::filesystem::path path = folder.path() / "of-text.hay";
    if (!std::filesystem::exists(path)) ingest(source, arena, text, path, options);
    return digest(path);
  }

  HybridIngestTest() : IngestTest([](const auto& at) { return test::write_hybrid_model(at); }) {}

  std::string digest_of(const Session& session, std::span<const std::int32_t> tokens) const {
    const std::vector<offload::SnapshotTail> tails = session.cache().tails();
    std::vector<offload::TailImage> images;
    for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
    std::vector<offload::LayerView> layers;
    for (int layer = 0; layer < session.cache().store().shape().layers; ++layer) {
      layers.push_back(session.cache().store().layer(layer));
    }
    return offload::content_digest(tokens, layers, images);
  }
};

TEST_F(HybridIngestTest, ResumedAndAppendedAreOneGoBitForBit) {
  const std::string expected = one_go();
  const std::filesystem::path resumed = folder.path() / "resumed.hay";
  interrupted([&](const PrefillProgress& progress) { return ingest(source, arena, text, resumed, options, progress); },
              [] {});
  EXPECT_EQ(digest(resumed), expected);
  EXPECT_EQ(in_pieces({1, text.size() / 2, text.size() - 40}), std::vector<std::string>(3, expected));
}

TEST_F(HybridIngestTest, AReopenedContextAnswersAsTheSessionThatWasNeverSavedAndForksGoTheirOwnWays) {
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  Session fresh(model, arena, options.session);
  fresh.append(tokenizer.encode(text));
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  const Session reopened = open_context(source, arena, snapshot, {});
  Session other = reopened.fork();
  for (int i = 0; i < 5; ++i) other.step(7);  // changes its own state alone
  EXPECT_EQ(answer(reopened.fork()), answer(fresh.fork()));
  EXPECT_NE(answer(std::move(other)), answer(fresh.fork()));
}

TEST_F(HybridIngestTest, AFailedStepLeavesTheStateAsItWas) {
  Session session(model, arena, options.session);
  session.append(tokenizer.encode(text));
  const Session before = session.fork();
  EXPECT_THROW(session.append(std::vector<std::int32_t>{1, 2, 3, 5120}), Error);  // no such token
  struct Full {};
  Workspace workspace;
  PrefillAttention exact;
  Cache cache = session.cache().fork();
  const std::vector<std::int32_t> tokens = {1, 2, 3};
  EXPECT_THROW(model.forward(cache, workspace, tokens, Want::last, exact, [](const float*) { throw Full(); }), Full);
  model.forward(cache, workspace, tokens, Want::none, exact);
  Session whole = before.fork();
  whole.append(tokens);
  for (std::size_t layer = 0; layer < cache.tails().size(); ++layer) {
    EXPECT_EQ(cache.tails()[layer].state, whole.cache().tails()[layer].state) << layer;
  }
  EXPECT_EQ(answer(session.fork()), answer(before.fork()));
}

TEST_F(HybridIngestTest, LayerByLayerAndChunkByChunkAreTheSameBits) {
  const std::vector<std::int32_t> tokens = tokenizer.encode(text);
  std::vector<std::string> digests;
  for (const auto order : {PrefillOptions::Order::chunk, PrefillOptions::Order::layer}) {
    options.session.prefill.order = order;
    Session session(model, arena, options.session);
    session.append(tokens);
    EXPECT_EQ(session.cache().device_bytes(),
              kept_tail_bytes(model.config(), options.session.cache, session.tokens(), options.session.chunk_tokens));
    digests.push_back(digest_of(session, tokens));
  }
  EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(HybridIngestTest, AChangedTextIsReadAgainFromTheLastCheckpointBeforeTheChange) {
  const std::vector<std::int32_t> all = tokenizer.encode_prompt(text);
  const auto chunk = static_cast<std::int64_t>(options.session.chunk_tokens);
  const std::int64_t last = static_cast<std::int64_t>(all.size()) / chunk * chunk;
  options.checkpoints = 4;
  for (const std::size_t near : {text.size() - 100, text.size() - 300, text.size() / 2}) {
    const std::size_t cut = text.find(". ", near) + 1;
    const std::string changed = text.substr(0, cut) + " But the captain had other plans. They sailed at dawn.";
    const std::filesystem::path path = folder.path() / fmt::format("updated-{}.hay", cut),
                                anew = folder.path() / fmt::format("anew-{}.hay", cut);
    ingest(source, arena, text, path, options);
    ingest(source, arena, changed, anew, options);
    EXPECT_EQ(offload::Snapshot::open(path).earlier_checkpoints(),
              (std::vector<std::int64_t>{last - 3 * chunk, last - 2 * chunk, last - chunk}));
    const IngestResult result = update(source, arena, changed, path, options);
    const std::int64_t nearest = result.same / chunk * chunk;
    EXPECT_EQ(result.resumed_from, nearest >= last - 3 * chunk ? std::min(nearest, last) : 0) << cut;
    EXPECT_EQ(digest(path), digest(anew)) << cut;
    EXPECT_TRUE(update(source, arena, changed, path, options).was_there);
    // And back to where it was.
    update(source, arena, text, path, options);
    EXPECT_EQ(digest(path), digest_of_text());
  }
}

TEST_F(HybridIngestTest, AnInterruptedUpdateGoesOn) {
  const std::filesystem::path path = folder.path() / "updated.hay";
  options.checkpoints = 8;
  ingest(source, arena, text, path, options);
  const std::string changed = text.substr(0, text.size() - 700) + text.substr(200, 2000);
  const int runs = interrupted(
      [&](const PrefillProgress& progress) { return update(source, arena, changed, path, options, progress); },
      [&] {
        EXPECT_TRUE(test::refuses([&] { offload::Snapshot::open(path); }, {"updated.hay", "unfinished"}));
      });
  EXPECT_GT(runs, 2);
  const std::filesystem::path anew = folder.path() / "anew.hay";
  ingest(source, arena, changed, anew, options);
  EXPECT_EQ(digest(path), digest(anew));
}

TEST_F(HybridIngestTest, KeptCheckpointsDoNotGrowTheFileForEver) {
  options.checkpoints = 3;
  const std::filesystem::path path = folder.path() / "kept.hay";
  ingest(source, arena, text, path, options);
  const std::uint64_t before = std::filesystem::file_size(path);
  std::uint64_t tails = 0;
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  for (int layer = 0; layer < model.config().layers; ++layer) {
    const offload::SnapshotTail tail = snapshot.tail(layer);
    tails += tail.rows.size() * sizeof(f16) + tail.state.size() * sizeof(float);
  }
  // Ten chunks more, each with a checkpoint: their blocks and ids, and no more tails than before.
  const std::uint64_t blocks =
      host_bytes(model.config(), options.session.cache, 10 * options.session.chunk_tokens + 64);
  append_to(source, arena, text.substr(0, 10 * 48 * 4), path, options);
  EXPECT_LT(std::filesystem::file_size(path), before + blocks + 20 * 4096 + tails);
}

TEST_F(HybridIngestTest, AContextGoesOnKeepingAsManyCheckpointsAsWereAskedForLast) {
  const std::filesystem::path path = folder.path() / "kept.hay";
  const auto goes_on = [&](int asked) {
    options.checkpoints = asked;
    append_to(source, arena, text, path, options);
    return offload::Snapshot::open(path).earlier_checkpoints().size() + 1;
  };
  options.again = true;
  options.checkpoints = 6;
  ingest(source, arena, text, path, options);
  EXPECT_EQ(goes_on(0), 6u);
  EXPECT_EQ(goes_on(2), 2u);
  EXPECT_EQ(goes_on(0), 2u);
  update(source, arena, "Another text. " + text, path, options);  // of which nothing can be kept
  EXPECT_EQ(offload::Snapshot::open(path).earlier_checkpoints().size() + 1, 2u);
  options.checkpoints = 0;
  const std::filesystem::path other = folder.path() / "other.hay";
  ingest(source, arena, text, other, options);
  EXPECT_EQ(offload::Snapshot::open(other).earlier_checkpoints().size() + 1, 4u) << "nothing was asked for";
}

TEST_F(HybridIngestTest, AStateOfAnotherShapeOrADamagedOneIsRefused) {
  const std::filesystem::path path = folder.path() / "saved.hay", other = folder.path() / "other.hay";
  ingest(source, arena, text, path, options);
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  const std::vector<std::int32_t> tokens = snapshot.tokens();
  std::vector<offload::SnapshotTail> tails;
  for (int layer = 0; layer < model.config().layers; ++layer) tails.push_back(snapshot.tail(layer));
  const auto open_with = [&](const std::vector<offload::SnapshotTail>& saved) {
    std::vector<offload::TailImage> images;
    for (const offload::SnapshotTail& tail : saved) images.push_back(tail.image());
    offload::save_snapshot(other, snapshot.description(), snapshot.store(arena), tokens, images, true);
    open_context(source, arena, offload::Snapshot::open(other), {});
  };
  EXPECT_NO_THROW(open_with(tails));
  std::vector<offload::SnapshotTail> changed = tails;
  changed[1].state.pop_back();
  EXPECT_TRUE(test::refuses([&] { open_with(changed); }, {"other.hay", "layer 1", "a state of"}));
  changed = tails;
  changed[2].state.clear();
  EXPECT_TRUE(test::refuses([&] { open_with(changed); }, {"other.hay", "layer 2", "a state of 0 numbers"}));

  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::string_view state(reinterpret_cast<const char*>(tails[0].state.data()),
                               tails[0].state.size() * sizeof(float));
  int found = 0;  // the checkpoint before the last has it, too
  for (std::size_t at = bytes.find(state); at != std::string::npos; at = bytes.find(state, at + 1), ++found) {
    bytes[at + 100] = static_cast<char>(bytes[at + 100] ^ 1);
  }
  ASSERT_GT(found, 0);
  std::ofstream(other, std::ios::binary) << bytes;
  EXPECT_TRUE(test::refuses([&] { open_context(source, arena, offload::Snapshot::open(other), {}); },
                            {"other.hay", "damaged", "layer 0"}));
}

}  // namespace
}  // namespace hayloft::runtime
