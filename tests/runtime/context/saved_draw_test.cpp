#include "tests/runtime/context/ingest_fixture.h"

namespace hayloft::runtime {
namespace {

// A draw depends on the seed, the layer, the length and the positions alone: a context that was saved gives the answers
// of one in memory, to the bit.
TEST_F(IngestTest, ValuesAreDrawnAlikeBehindASavedContextAndOneInMemory) {
  const auto grammar = eval::make_grammar(4);
  while (text.size() < 6000) text += grammar->next() + " ";
  const std::filesystem::path path = folder.path() / "saved.hay";
  ingest(source, arena, text, path, options);
  const std::vector<std::int32_t> tokens = tokenizer.encode(text);
  Session fresh(model, arena, options.session);
  fresh.append(tokens);
  for (const char* const attn : {"sparq:r=8:k=64:rest=draw", "topk:k=64:rest=draw", "sparq:r=8:k=64:rest=calibrated"}) {
    const SharedMethod method = make_method(parse_method(attn, {}), model.config().head_dim);
    Session reopened = open_context(source, arena, offload::Snapshot::open(path), options.session);
    Session fork = fresh.fork();
    fork.set_method(method);
    reopened.set_method(method);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(fork.step(tokens[static_cast<std::size_t>(step)]),
                reopened.step(tokens[static_cast<std::size_t>(step)]))
          << attn;
    }
    EXPECT_TRUE(fork.predicted_error().known());
    EXPECT_EQ(fork.predicted_error().mean(), reopened.predicted_error().mean());
  }
}

}  // namespace
}  // namespace hayloft::runtime
