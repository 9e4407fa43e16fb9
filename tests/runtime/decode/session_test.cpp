#include "tests/runtime/decode/session_fixture.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "offload/error.h"
#include "runtime/attention/attention_rates.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {
namespace {

// Logits of the same arithmetic in another order: a few hundred f32 roundings of values of the logits' own size.
void expect_close(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  float largest = 0;
  for (const float x : a) largest = std::max(largest, std::fabs(x));
  const float tolerance = 1000 * std::numeric_limits<float>::epsilon() * largest;
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "at " << i;
}

TEST_F(SessionTest, AForkCostsNoHostMemoryAndAnswersAsAFreshSessionWould) {
  const auto tokens = random_tokens(100, model.config().vocab_size, 1);
  Session context(model, arena, options);
  context.append(tokens);
  const std::uint64_t used = arena.used_bytes();
  std::vector<Session> forks;
  for (int i = 0; i < 10; ++i) forks.push_back(context.fork());
  EXPECT_EQ(arena.used_bytes(), used);

  for (int i = 0; i < 10; ++i) {
    const auto question = random_tokens(40, model.config().vocab_size, 100 + static_cast<std::uint32_t>(i));
    Session fresh(model, arena, options);
    fresh.append(tokens);
    for (const std::int32_t token : question) {
      expect_close(forks[static_cast<std::size_t>(i)].step(token), fresh.step(token));
    }
  }
  EXPECT_EQ(context.tokens(), 100);
}

TEST_F(SessionTest, AForkAtAnEarlierTokenIsAsIfTheOthersHadNeverBeen) {
  const auto tokens = random_tokens(70, model.config().vocab_size, 1);
  const auto answer = random_tokens(10, model.config().vocab_size, 2);
  Session whole(model, arena, options);
  whole.append(tokens);
  for (const std::int32_t token : answer) whole.step(token);
  EXPECT_TRUE(whole.rewindable());
  ASSERT_LE(whole.rewinds_to(), 72);
  ASSERT_GT(whole.rewinds_to(), 16);  // blocks that have left the tail are not taken back
  EXPECT_THROW(whole.fork_at(whole.rewinds_to() - 1), std::logic_error);
  for (const std::int64_t at : {std::int64_t{72}, std::int64_t{75}, std::int64_t{80}}) {
    Session cut = whole.fork_at(at);
    Session fresh(model, arena, options);
    fresh.append(tokens);
    for (std::int64_t i = 70; i < at; ++i) fresh.step(answer[static_cast<std::size_t>(i - 70)]);
    EXPECT_EQ(cut.tokens(), at);
    cut.append(answer);
    fresh.append(answer);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(cut.step(i), fresh.step(i)) << at << ", step " << i;
  }
}

TEST_F(SessionTest, WhatHasBeenForgottenIsNotTakenBack) {
  for (const char* name : {"mistral-sliding", "qwen3_5"}) {
    const Model of(goldens / name, *backend);
    Session session(of, arena, options);
    session.append(random_tokens(100, of.config().vocab_size, 3));
    EXPECT_EQ(session.rewinds_to(), 100) << name;
    EXPECT_FALSE(session.rewindable()) << name;
  }
  Session attended(model, arena, options);
  attended.set_method(make_method(method("h2o:k=16"), model.config().head_dim));
  attended.append(random_tokens(30, model.config().vocab_size, 3));
  EXPECT_EQ(attended.rewinds_to(), 30);
}

TEST_F(SessionTest, TheTailGivesBackWhatOnlyAPromptNeeded) {
  for (const char* name : {"llama", "mistral-sliding", "gemma4"}) {
    const Model of(goldens / name, *backend);
    const auto tokens = random_tokens(137, of.config().vocab_size, 3);
    Session shrunk(of, arena, options), whole(of, arena, options);
    shrunk.append(tokens);
    whole.append(tokens, {}, true);
    const std::uint64_t kept = shrunk.cache().device_bytes();
    EXPECT_LT(kept, whole.cache().device_bytes()) << name;
    EXPECT_EQ(whole.cache().device_bytes(), tail_bytes(of.config(), options.cache, 137, options.chunk_tokens));
    for (int i = 0; i < 40; ++i) ASSERT_EQ(shrunk.step(i), whole.step(i)) << name << ", step " << i;
    EXPECT_EQ(shrunk.cache().device_bytes(), kept) << name << ": steps need no more";
  }
}

TEST_F(SessionTest, AutoAnswersAsTheMethodsItChoosesAndAsAForkOfItself) {
  const auto tokens = random_tokens(260, model.config().vocab_size, 7);
  const int d = model.config().head_dim;
  MachineRates rates;
  rates.rates = [](int head_dim, int group, std::uint64_t) {
    AttentionRates of = built_in_rates("cpu")->rates(head_dim, group, 0);
    of.column_select_us = 1e-3;
    of.sparq_tail = of.tail / 8;  // a long tail makes it dense
    return of;
  };
  MethodOptions automatic = method("auto:r=2:k=8");
  automatic.rates = std::make_shared<const MachineRates>(rates);
  const SharedMethod by_length = make_method(automatic, d);
  const SharedMethod sparq = make_method(method("sparq:r=2:k=8"), d), dense = make_method(method("dense"), d);
  Session session(model, arena, options);
  session.set_method(by_length).append(std::span(tokens).first(20));
  Session other(model, arena, options);  // decodes by the method that the views say is chosen
  other.append(std::span(tokens).first(20));
  int changes = 0;
  bool was_sparq = false;
  for (int i = 20; i < 240; ++i) {
    gpu::CacheView next = session.cache().global_views().front();
    ++next.tail.tokens;
    const bool is_sparq = by_length->plan(next, model.config().query_heads).by->options().name == "sparq";
    changes += is_sparq != was_sparq ? 1 : 0;
    was_sparq = is_sparq;
    Session fork = session.fork();
    const std::int32_t token = tokens[static_cast<std::size_t>(i)];
    const auto logits = session.step(token);
    ASSERT_EQ(logits, other.set_method(is_sparq ? sparq : dense).step(token)) << i;
    if (i % 16 == 0) {
      ASSERT_EQ(logits, fork.step(token)) << i;
    }
  }
  EXPECT_GT(changes, 2);
  EXPECT_EQ(session.methods_used(), other.methods_used());
  EXPECT_EQ(session.methods_used().size(), 2u);
  EXPECT_DOUBLE_EQ(session.attended_share(), other.attended_share());
}

TEST_F(SessionTest, PrefillDoesNotDependOnTheChunkSize) {
  const auto tokens = random_tokens(90, model.config().vocab_size, 2);
  std::vector<float> reference;
  for (const int chunk : {1, 7, 16, 33, 1000}) {
    options.chunk_tokens = chunk;
    Session session(model, arena, options);
    session.append(std::span(tokens).first(89));
    const auto logits = session.step(tokens[89]);
    if (reference.empty()) reference = logits;
    expect_close(logits, reference);
  }
}

TEST_F(SessionTest, EveryMethodThatAttendsToEverythingEqualsDense) {
  const auto tokens = random_tokens(120, model.config().vocab_size, 3);
  const int d = model.config().head_dim;
  Session context(model, arena, options);
  context.append(std::span(tokens).first(119));
  const auto expected = context.fork().set_method(make_method(method("dense"), d)).step(tokens[119]);
  MethodOptions everything;
  everything.rank = d;
  everything.k = Budget{0, 1.0};
  for (const char* name : {"sparq", "topk", "window"}) {
    everything.name = name;
    SCOPED_TRACE(name);
    expect_close(context.fork().set_method(make_method(everything, d)).step(tokens[119]), expected);
  }
}

TEST_F(SessionTest, SparseMethodsDifferFromDenseWhenTheyLeaveSomethingOut) {
  const auto tokens = random_tokens(120, model.config().vocab_size, 3);
  const int d = model.config().head_dim;
  Session context(model, arena, options);
  context.append(std::span(tokens).first(119));
  const auto expected = context.fork().set_method(make_method(method("dense"), d)).step(tokens[119]);
  for (const char* text : {"sparq:r=1:k=8", "topk:k=1", "window:k=8"}) {
    EXPECT_NE(context.fork().set_method(make_method(method(text), d)).step(tokens[119]), expected) << text;
  }
}

TEST_F(SessionTest, TheBlocksOfALayerOfAPromptLieBehindOneAnother) {
  // Although the layers take turns in spilling them.
  ASSERT_GT(model.config().global_layers(), 1);
  const auto tokens = random_tokens(203, model.config().vocab_size, 4);
  Session session(model, arena, options);
  session.append(tokens);
  const offload::Store& store = session.cache().store();
  const auto alignment = static_cast<std::ptrdiff_t>(offload::Arena::alignment);
  const auto block = static_cast<std::ptrdiff_t>(store.layout().block_bytes);
  for (int layer = 0; layer < model.config().global_layers(); ++layer) {
    const auto blocks = store.layer(layer).blocks;
    ASSERT_EQ(blocks.size(), 12u);
    for (std::size_t i = 1; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i] - blocks[i - 1], (block + alignment - 1) / alignment * alignment) << layer << ", " << i;
    }
  }
}

TEST_F(SessionTest, WhatWasSetAsideForAPromptThatIsBrokenOffIsGivenBack) {
  struct Stop {};
  const auto tokens = random_tokens(203, model.config().vocab_size, 4);
  Session session(model, arena, options);
  std::int64_t read = 0;
  const auto stop = [&](std::int64_t done, std::int64_t) {
    read = done;
    if (done > 100) throw Stop();
  };
  EXPECT_THROW(session.append(tokens, stop), Stop);
  EXPECT_EQ(arena.used_bytes(), host_bytes(model.config(), options.cache, read));
}

TEST_F(SessionTest, AnExhaustedBudgetLeavesTheSessionAsItWas) {
  const auto tokens = random_tokens(400, model.config().vocab_size, 4);
  const std::uint64_t needed = host_bytes(model.config(), options.cache, 64);
  offload::Arena small(topology, {.budget_bytes = needed});
  Session session(model, small, options);
  std::int64_t before = 0;
  EXPECT_THROW(session.append(tokens, [&](std::int64_t done, std::int64_t) { before = done; }), Error);
  EXPECT_EQ(session.tokens(), before);
  EXPECT_GE(before, 48);

  Session fresh(model, arena, options);
  fresh.append(std::span(tokens).first(static_cast<std::size_t>(before)));
  expect_close(session.step(tokens[0]), fresh.step(tokens[0]));
}

TEST_F(SessionTest, ElementsEqualThePapersFormulasAndBytesTheLayout) {
  const auto tokens = random_tokens(203, model.config().vocab_size, 5);
  const auto& config = model.config();
  const auto d = static_cast<std::uint64_t>(config.head_dim);
  const auto lists = static_cast<std::uint64_t>(config.kv_heads * config.global_layers());
  Session context(model, arena, options);
  context.append(std::span(tokens).first(202));
  // Whole blocks are spilled while a block and the window are full: of 203 tokens the store holds a multiple of 16.
  const std::uint64_t S = 203;
  const std::uint64_t row = 4 * d;

  auto step = [&](std::string_view text) {
    Session session = context.fork();
    session.set_method(make_method(method(text), config.head_dim)).step(tokens[202]);
    return session.counters();
  };
  const auto in_store = static_cast<std::uint64_t>(context.cache().view(0).store.tokens);
  const std::uint64_t in_tail = S - in_store;
  ASSERT_EQ(in_store % 16, 0u);
  ASSERT_GT(in_store, 100u);

  Counters dense = step("dense");
  EXPECT_EQ(dense.elements, lists * (2 * S * d + 2 * d));
  EXPECT_EQ(dense.at(Place::link, Kind::dense), lists * in_store * row);
  EXPECT_EQ(dense.at(Place::device, Kind::rows), lists * in_tail * row);
  EXPECT_EQ(dense.rows_fetched, lists * S);

  Counters sparq = step("sparq:r=4:k=40:window=8");
  const std::uint64_t attended = 32 + in_tail;
  EXPECT_EQ(sparq.elements, lists * (S * 4 + 2 * attended * d + 4 * d));
  EXPECT_EQ(sparq.at(Place::link, Kind::columns), lists * 4 * in_store * 2);
  EXPECT_EQ(sparq.at(Place::link, Kind::rows), lists * 32 * row);
  EXPECT_EQ(sparq.at(Place::device, Kind::rows), lists * in_tail * row);
  EXPECT_EQ(sparq.positions_scored, lists * S);

  Counters topk = step("topk:k=10");
  const auto g = static_cast<std::uint64_t>(config.group_size());
  EXPECT_EQ(topk.elements, lists * (S * d + 2 * (10 * g + in_tail) * d + 2 * d));
  EXPECT_EQ(topk.at(Place::near, Kind::columns), lists * d * in_store * 2);
  EXPECT_EQ(topk.at(Place::link, Kind::rows), lists * g * 10 * row);

  Counters window = step("window:k=12:sinks=4");
  EXPECT_EQ(window.elements, lists * (2 * 12 * d + 2 * d));
  EXPECT_EQ(window.at(Place::link, Kind::rows), lists * 4 * row);
  EXPECT_EQ(window.at(Place::device, Kind::rows), lists * 8 * row);
}

TEST_F(SessionTest, BytesOfIntegerColumnsAreTheirLevelsAndTheirScales) {
  const auto tokens = random_tokens(203, model.config().vocab_size, 5);
  const auto d = static_cast<std::uint64_t>(model.config().head_dim);
  const auto lists = static_cast<std::uint64_t>(model.config().kv_heads * model.config().global_layers());
  for (const auto& [format, bits] : {std::pair{offload::ColumnFormat::int8, 8}, {offload::ColumnFormat::int4, 4}}) {
    for (const int block : {16, 64}) {
      SCOPED_TRACE(fmt::format("{} in blocks of {}", offload::name(format), block));
      options.cache = {.block_tokens = block, .columns = format, .window = 8};
      Session session(model, arena, options);
      session.append(std::span(tokens).first(202));
      const auto in_store = static_cast<std::uint64_t>(session.cache().view(0).store.tokens);
      ASSERT_GE(in_store, 128u);
      Session searching = session.fork();
      searching.set_method(make_method(method("sparq:r=4:k=40:window=8"), model.config().head_dim)).step(tokens[202]);
      Counters sparq = searching.counters();
      EXPECT_EQ(sparq.at(Place::link, Kind::columns), lists * 4 * in_store * static_cast<std::uint64_t>(bits) / 8);
      EXPECT_EQ(sparq.at(Place::link, Kind::scales), lists * 4 * in_store / static_cast<std::uint64_t>(block) * 2);
      // An exact search reads K's half of the rows instead.
      Session exact = session.fork();
      exact.set_method(make_method(method("topk:k=10"), model.config().head_dim)).step(tokens[202]);
      Counters topk = exact.counters();
      EXPECT_EQ(topk.total(Place::near), lists * in_store * 2 * d);
      EXPECT_EQ(topk.at(Place::near, Kind::rows), lists * in_store * 2 * d);
    }
  }
}

TEST_F(SessionTest, BytesOfPlanesAreThoseAskedForAndTheRangesOfAsManyComponents) {
  const auto tokens = random_tokens(203, model.config().vocab_size, 5);
  const auto lists = static_cast<std::uint64_t>(model.config().kv_heads * model.config().global_layers());
  options.cache = {.block_tokens = 64, .columns = offload::ColumnFormat::planes, .window = 8};
  Session session(model, arena, options);
  session.append(std::span(tokens).first(202));
  const auto in_store = static_cast<std::uint64_t>(session.cache().view(0).store.tokens);
  ASSERT_GE(in_store, 128u);
  const auto count = [&](const char* text) {
    Session searching = session.fork();
    searching.set_method(make_method(method(text), model.config().head_dim)).step(tokens[202]);
    return searching.counters();
  };
  Counters planes = count("planes:bits=5:k=40:window=8");
  EXPECT_EQ(planes.at(Place::link, Kind::columns), lists * 5 * in_store / 8);
  EXPECT_EQ(planes.at(Place::link, Kind::scales), lists * 5 * in_store / 64 * 4);  // a centre and a half-width
  Counters sparq = count("sparq:r=3:k=40:window=8");
  EXPECT_EQ(sparq.at(Place::link, Kind::columns), lists * 3 * in_store / 2);
  EXPECT_EQ(sparq.at(Place::link, Kind::scales), lists * 3 * in_store / 64 * 4);
}

TEST(Session, ANaNInTheWeightsIsAnErrorThatNamesTheLayer) {
  const auto folder = std::filesystem::temp_directory_path() / "hayloft-nan-test";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(goldens / "llama/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const SafetensorsFile file(goldens / "llama/model.safetensors");
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  values.reserve(file.tensors().size());
  for (const auto& [name, tensor] : file.tensors()) {
    values.push_back(to_f32(tensor, name));
    if (name == "model.layers.1.self_attn.o_proj.weight") values.back()[0] = std::numeric_limits<float>::quiet_NaN();
    tensors.push_back({name, "F32", tensor.shape, std::as_bytes(std::span(values.back()))});
  }
  write_safetensors(folder / "model.safetensors", tensors);

  offload::Threads threads(2);
  const auto backend = gpu::make_cpu_backend(threads);
  offload::Arena arena(offload::Topology(), {.budget_bytes = 64 << 20});
  const Model model(folder, *backend);
  Session session(model, arena);
  try {
    session.step(1);
    FAIL() << "NaN went unnoticed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 1"), std::string::npos) << error.what();
  }
  EXPECT_EQ(session.tokens(), 0);
  std::filesystem::remove_all(folder);
}

TEST_F(SessionTest, ADrawIsTheSameInAForkAndOnAnyNumberOfThreads) {
  const auto tokens = random_tokens(140, model.config().vocab_size, 5);
  const offload::Threads alone(1);
  const std::unique_ptr<gpu::Backend> other = gpu::make_cpu_backend(alone);
  const Model same(goldens / "llama", *other);
  for (const char* const text :
       {"planes:bits=16:k=24:rest=draw", "planes:bits=16:k=24:rest=calibrated", "topk:k=24:rest=draw"}) {
    SCOPED_TRACE(text);
    const auto drawing = make_method(method(text), model.config().head_dim);
    options.cache.columns = needs_planes(method(text)) ? offload::ColumnFormat::planes : offload::ColumnFormat::f16;
    Session two(model, arena, options), one(same, arena, options);
    for (Session* session : {&two, &one}) {
      session->append(std::span(tokens).first(120));
      session->set_method(drawing);
    }
    Session fork = two.fork();
    fork.set_method(drawing);
    for (std::size_t i = 120; i < tokens.size(); ++i) {
      const std::vector<float> logits = two.step(tokens[i]);
      EXPECT_EQ(one.step(tokens[i]), logits) << i;
      EXPECT_EQ(fork.step(tokens[i]), logits) << i;
    }
    EXPECT_TRUE(two.predicted_error().known());
    EXPECT_EQ(one.predicted_error().mean(), two.predicted_error().mean());
  }
}

TEST_F(SessionTest, ApproximateStepsPredictTheirErrorsWhateverStandsInForTheRest) {
  const auto tokens = random_tokens(140, model.config().vocab_size, 5);
  for (const char* const text : {"sparq:r=4:k=24", "sparq:r=4:k=24:rest=none", "topk:k=24", "dense", "window:k=24"}) {
    const std::string_view name = text;
    const auto by = make_method(method(text), model.config().head_dim);
    Session session(model, arena, options);
    session.append(std::span(tokens).first(120));
    session.set_method(by);
    for (std::size_t i = 120; i < tokens.size(); ++i) session.step(tokens[i]);
    EXPECT_EQ(session.predicted_error().known(), name != "dense" && !name.starts_with("window")) << text;
    EXPECT_TRUE(std::isfinite(session.predicted_error().mean())) << text;
    EXPECT_LT(session.predicted_error().attended_mass(), 1) << text;
  }
}

}  // namespace
}  // namespace hayloft::runtime
