#include "runtime/decode/prefill_read.h"
#include "runtime/fidelity/attention_statement.h"
#include "tests/runtime/context/ingest_fixture.h"
#include "tests/support/hybrid_model.h"

// Contexts that are read sparsely: the same however the reading was cut, and they keep what they have left out.
namespace hayloft::runtime {
namespace {

class SparseIngestTest : public IngestTest {
 protected:
  SparseIngestTest() : IngestTest([](const auto& at) { return test::write_hybrid_model(at, {.layers = 8}); }) {
    options.session.chunk_tokens = 256;
    options.session.prefill = {.kind = PrefillOptions::Kind::sparse, .sparse = {.density = 0.2}};
  }

  std::string line_of(const std::filesystem::path& path) const {
    return prefill_read_line(saved_prefill_read(offload::Snapshot::open(path)));
  }
};

TEST_F(SparseIngestTest, ResumedAndAppendedAreOneGoBitForBitAndSayTheSameLoss) {
  const std::filesystem::path whole = folder.path() / "whole.hay", resumed = folder.path() / "resumed.hay";
  const IngestResult result = ingest(source, arena, text, whole, options);
  ASSERT_TRUE(left_out(result.prefill_read));
  EXPECT_EQ(line_of(whole), prefill_read_line(result.prefill_read));
  interrupted([&](const PrefillProgress& progress) { return ingest(source, arena, text, resumed, options, progress); },
              [] {});
  EXPECT_EQ(digest(resumed), digest(whole));
  EXPECT_EQ(line_of(resumed), line_of(whole));
  EXPECT_EQ(in_pieces({text.size() / 2}), std::vector{digest(whole)});

  options.session.prefill = {};
  ingest(source, arena, text, folder.path() / "exact.hay", options);
  EXPECT_NE(digest(folder.path() / "exact.hay"), digest(whole));
  EXPECT_EQ(line_of(folder.path() / "exact.hay"), "");
}

TEST_F(SparseIngestTest, OfAFidelityTheResultDoesNotDependOnWhereItWasCutEither) {
  options.session.prefill.sparse = {.fidelity = 0.6};
  const std::filesystem::path whole = folder.path() / "whole.hay";
  ASSERT_TRUE(left_out(ingest(source, arena, text, whole, options).prefill_read));
  EXPECT_EQ(in_pieces({text.size() / 3}), std::vector{digest(whole)});
}

TEST_F(SparseIngestTest, NoAnswerBehindOneIsCalledExact) {
  const std::filesystem::path path = folder.path() / "sparse.hay";
  ingest(source, arena, text, path, options);
  Session session = open_context(source, arena, offload::Snapshot::open(path), {});
  answer(session.fork());
  Session asked = session.fork();
  asked.step(7);
  AttentionStatement said;
  said.add(asked);
  EXPECT_FALSE(said.exact());
  EXPECT_NE(said.text().find("the prompt was read by sparse: "), std::string::npos) << said.text();
}

TEST_F(SparseIngestTest, NorBehindOneThatWasReadByAWindowThoughTheQuestionIsReadExactly) {
  options.session.prefill = {.kind = PrefillOptions::Kind::window, .window = 64, .sinks = 4};
  const std::filesystem::path path = folder.path() / "window.hay";
  ingest(source, arena, text, path, options);
  Session asked = open_context(source, arena, offload::Snapshot::open(path), {}).fork();
  asked.step(7);
  AttentionStatement said;
  said.add(asked);
  EXPECT_FALSE(said.exact());
  EXPECT_NE(said.text().find("the prompt was read by window w=64 s=4"), std::string::npos) << said.text();
}

}  // namespace
}  // namespace hayloft::runtime
