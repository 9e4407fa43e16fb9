#include <algorithm>
#include <cmath>
#include <map>

#include "runtime/cluster/candidates.h"
#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/rank_attender.h"
#include "tests/runtime/decode/session_fixture.h"
#include "tests/support/refusal.h"

// Sessions of ranks that hold a context together, each rank on a thread of its own.
namespace hayloft::runtime {
namespace {

using cluster::Communicator;
using cluster::Ledger;
using cluster::Traffic;

// Keeps what the first global layer attended to, step by step. Its queries do not depend on how attention is merged,
// since nothing has attended to the context before it.
class FirstLayer : public StepObserver {
 public:
  explicit FirstLayer(int layer) : layer_(layer) {}
  bool wants(int layer, std::int64_t) override { return layer == layer_; }
  void see(const Step& step, const Method&) override { positions.push_back(step.trace->positions); }

  std::vector<std::vector<std::int32_t>> positions;

 private:
  int layer_;
};

class SessionOverRanksTest : public SessionTest {
 protected:
  struct Answer {
    std::vector<std::vector<float>> logits;  // of each step
    std::vector<std::vector<std::int32_t>> positions;
    std::uint64_t host_bytes = 0;
    std::int64_t tokens = 0;
    Ledger network;  // of the steps
  };

  static int first_global(const ModelConfig& config) {
    int layer = 0;
    while (layer < config.layers && config.kind(layer) != LayerKind::global) ++layer;  // may have none
    return layer;
  }

  // Reads `prompt`, then decodes `forced` in a fork.
  Answer answer(const Model& of, Communicator* ranks, const std::string& by, std::span<const std::int32_t> prompt,
                std::span<const std::int32_t> forced) {
    SessionOptions own = options;
    if (ranks != nullptr) own.attend_by(cluster::rank_attender(*ranks));
    Session context(of, arena, own);
    const SharedMethod decoding = make_method(method(by), of.config().head_dim);
    context.attach_method(*decoding);
    context.append(prompt);
    Session session = context.fork();
    session.set_method(decoding);
    const auto first = std::make_shared<FirstLayer>(first_global(of.config()));
    session.add_observer(first);
    const Ledger before = ranks == nullptr ? Ledger() : ranks->ledger();
    Answer got;
    for (const std::int32_t token : forced) got.logits.push_back(session.step(token));
    got.positions = first->positions;
    got.host_bytes = session.cache().host_bytes();
    got.tokens = session.tokens();
    if (ranks != nullptr) got.network = ranks->ledger().since(before);
    return got;
  }

  std::vector<Answer> answers(const Model& of, int count, const std::string& by, std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> forced) {
    std::vector<Answer> all(static_cast<std::size_t>(count));
    cluster::run_local_ranks(count, [&](Communicator& ranks) {
      all[static_cast<std::size_t>(ranks.rank())] = answer(of, &ranks, by, prompt, forced);
    });
    return all;
  }

  // The same arithmetic merged in another order. What that changes in f32 can bring a key or a value to the
  // neighbouring f16 when it enters the cache, 2^-10 of it away at most: so all of them could be, and what is made of
  // them.
  static void expect_close(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t step = 0; step < a.size(); ++step) {
      float largest = 0;
      for (const float x : b[step]) largest = std::max(largest, std::fabs(x));
      const float tolerance = largest / 1024;
      for (std::size_t i = 0; i < a[step].size(); ++i)
        ASSERT_NEAR(a[step][i], b[step][i], tolerance) << "step " << step;
    }
  }
};

TEST_F(SessionOverRanksTest, RanksAnswerAsOneMachine) {
  for (const char* name :
       {"llama", "mistral-sliding", "gemma3", "smollm3", "qwen3_5", "qwen3_moe", "gpt_oss", "gemma4"}) {
    const Model of(goldens / name, *backend);
    const auto tokens = random_tokens(230, of.config().vocab_size, 11);
    const auto prompt = std::span(tokens).first(200), forced = std::span(tokens).subspan(200);
    for (const std::string by :
         {"dense", "window:k=20", "topk:k=12", "sparq:r=4:k=12", "sparq:r=4:k=12:group=logits"}) {
      const Answer alone = answer(of, nullptr, by, prompt, forced);
      for (const int count : {1, 2, 3, 4}) {
        SCOPED_TRACE(fmt::format("{} {} over {} ranks", name, by, count));
        const std::vector<Answer> all = answers(of, count, by, prompt, forced);
        std::uint64_t bytes = 0;
        for (const Answer& rank : all) {
          EXPECT_EQ(rank.logits, all.front().logits) << "ranks part";
          EXPECT_EQ(rank.positions, alone.positions);
          EXPECT_EQ(rank.tokens, alone.tokens);
          bytes += rank.host_bytes;
        }
        EXPECT_EQ(bytes, alone.host_bytes) << "each block lies on one rank";
        // A search that ranks by rounded queries may take another position from the second layer on; exact attention
        // may not.
        if (by == "dense" || by.starts_with("window")) expect_close(all.front().logits, alone.logits);
      }
    }
  }
}

TEST_F(SessionOverRanksTest, PromptsAreReadInEveryOrderAlike) {
  const auto tokens = random_tokens(150, model.config().vocab_size, 12);
  const auto prompt = std::span(tokens).first(149), forced = std::span(tokens).last(1);
  const Answer alone = answer(model, nullptr, "dense", prompt, forced);
  for (const auto order : {PrefillOptions::Order::chunk, PrefillOptions::Order::layer}) {
    for (const int chunk : {1, 7, 64, 1000}) {
      options.prefill.order = order;
      options.chunk_tokens = chunk;
      expect_close(answers(model, 3, "dense", prompt, forced).front().logits, alone.logits);
    }
  }
}

TEST_F(SessionOverRanksTest, IntegerRowsAndColumnsAreThoseOfOneMachine) {
  options.cache.columns = offload::ColumnFormat::int8;
  options.cache.rows = offload::RowFormat::int8;
  options.cache.block_tokens = 64;
  const auto tokens = random_tokens(400, model.config().vocab_size, 13);
  const auto prompt = std::span(tokens).first(390), forced = std::span(tokens).subspan(390);
  for (const std::string by : {"dense", "topk:k=12", "sparq:r=4:k=12"}) {
    const Answer alone = answer(model, nullptr, by, prompt, forced);
    const std::vector<Answer> all = answers(model, 2, by, prompt, forced);
    EXPECT_EQ(all.front().positions, alone.positions) << by;
    if (by == "dense") expect_close(all.front().logits, alone.logits);
  }
}

TEST_F(SessionOverRanksTest, MethodsThatKeepOrSpreadThingsSelectAsOneMachine) {
  options.cache.block_tokens = 64;
  const auto tokens = random_tokens(520, model.config().vocab_size, 17);
  const auto prompt = std::span(tokens).first(500), forced = std::span(tokens).subspan(500);
  for (const auto columns : {offload::ColumnFormat::f16, offload::ColumnFormat::planes}) {
    options.cache.columns = columns;
    const bool planes = columns == offload::ColumnFormat::planes;
    const auto methods = planes ? std::vector<std::string>{"planes:bits=10:k=12", "sparq:r=4:k=12:by=qk",
                                                           "planes:bits=10:k=24:rest=draw"}
                                : std::vector<std::string>{"oracle:k=12",
                                                           "flexgen:k=12",
                                                           "pages:page=16:k=48",
                                                           "lowrank:r=4:k=12",
                                                           "auto:k=12",
                                                           "topk:k=12:rest=draw",
                                                           "sparq:r=4:k=24:rest=calibrated"};
    for (const std::string& by : methods) {
      const Answer alone = answer(model, nullptr, by, prompt, forced);
      for (const int count : {2, 3}) {
        for (const Answer& rank : answers(model, count, by, prompt, forced)) {
          EXPECT_EQ(rank.positions, alone.positions) << by << " over " << count;
        }
      }
    }
  }
}

// Each rank sees all queries and has the newest rows, which is all that H2O needs: what it keeps, evicts and attends to
// in the first global layer is that of one machine to the bit, however the prompt is read.
TEST_F(SessionOverRanksTest, HeavyHittersAreKeptAndEvictedAsByOneMachine) {
  for (const char* name : {"llama", "gemma3", "qwen3_5", "gpt_oss", "gemma4"}) {
    const Model of(goldens / name, *backend);
    const auto tokens = random_tokens(230, of.config().vocab_size, 18);
    const auto prompt = std::span(tokens).first(200), forced = std::span(tokens).subspan(200);
    for (const auto order : {PrefillOptions::Order::chunk, PrefillOptions::Order::layer}) {
      options.prefill.order = order;
      for (const std::string by : {"h2o:k=20", "h2o:k=12%:recent=0.25"}) {
        const Answer alone = answer(of, nullptr, by, prompt, forced);
        ASSERT_FALSE(alone.positions.empty());
        for (const int count : {1, 2, 3, 4}) {
          SCOPED_TRACE(fmt::format("{} {} over {} ranks", name, by, count));
          const std::vector<Answer> all = answers(of, count, by, prompt, forced);
          for (const Answer& rank : all) {
            EXPECT_EQ(rank.positions, alone.positions);
            EXPECT_EQ(rank.logits, all.front().logits) << "ranks part";
            EXPECT_EQ(rank.network.total().messages, 0u);
          }
        }
      }
    }
  }
}

TEST_F(SessionOverRanksTest, WhatOneMachineHasKeptOfAPromptIsWhatRanksGoOnWith) {
  const auto tokens = random_tokens(230, model.config().vocab_size, 19);
  const auto prompt = std::span(tokens).first(200), forced = std::span(tokens).subspan(200);
  const SharedMethod heavy = make_method(method("h2o:k=20"), model.config().head_dim);
  Session alone(model, arena, options);
  alone.attach_method(*heavy);
  alone.append(prompt);
  const std::vector<std::byte> saved = alone.state(*heavy)->save();
  const Answer expected = answer(model, nullptr, "h2o:k=20", prompt, forced);
  cluster::run_local_ranks(3, [&](Communicator& ranks) {
    SessionOptions own = options;
    own.attend_by(cluster::rank_attender(ranks));
    Session session(model, arena, own);
    session.append(prompt);
    EXPECT_TRUE(test::refuses([&] { session.prepare(*heavy); }, {"--attn h2o", "0 of its 200 tokens", "one machine"}));
    session.restore(*heavy, saved);
    session.prepare(*heavy);
    session.set_method(heavy);
    const auto first = std::make_shared<FirstLayer>(0);
    session.add_observer(first);
    for (const std::int32_t token : forced) session.step(token);
    EXPECT_EQ(first->positions, expected.positions);
  });
}

TEST_F(SessionOverRanksTest, SearchesOfTheirOwnSelectAsOneMachine) {
  const auto tokens = random_tokens(230, model.config().vocab_size, 20);
  const auto prompt = std::span(tokens).first(200), forced = std::span(tokens).subspan(200);
  const Answer topk = answer(model, nullptr, "topk:k=12", prompt, forced);
  for (const std::string by : {"topk:k=12:engine=faiss", "ann:k=12"}) {
    for (const int count : {1, 2, 3, 4}) {
      for (const Answer& rank : answers(model, count, by, prompt, forced)) {
        EXPECT_EQ(rank.positions, topk.positions) << by << " over " << count;
      }
    }
  }
}

TEST_F(SessionOverRanksTest, ATokenMovesTheSameBytesAtEveryLength) {
  const ModelConfig& config = model.config();
  const auto layers = static_cast<std::uint64_t>(config.global_layers());
  const std::uint64_t attention = cluster::AttentionParts::bytes(config.query_heads, config.head_dim);
  const std::uint64_t exact = cluster::Candidates::bytes(config.query_heads, 1, 12);
  const int group = config.query_heads / config.kv_heads;
  ASSERT_GT(group, 1);
  const std::uint64_t columns = cluster::Candidates::bytes(config.kv_heads, group, 9);  // beside a window of k / 4
  const std::uint64_t masses = 4 * sizeof(float) * static_cast<std::uint64_t>(config.query_heads);
  const std::uint64_t further = cluster::Candidates::bytes(config.kv_heads, group, 8) + sizeof(float);
  struct Expected {
    std::uint64_t messages;
    std::uint64_t bytes;
    std::uint64_t further_bytes = 0;  // of a message more in some layers
  };
  const std::map<std::string, Expected> expected = {{"dense", {1, attention}},
                                                    {"window:k=20", {1, attention}},
                                                    {"topk:k=12", {2, attention + exact}},
                                                    {"topk:k=12:engine=faiss", {2, attention + exact}},
                                                    {"ann:k=12", {2, attention + exact + 24}},
                                                    {"h2o:k=12", {0, 0}},
                                                    {"sparq:r=4:k=12", {2, attention + columns + masses, further}},
                                                    {"sparq:r=4:k=12:group=logits", {2, attention + columns + masses}}};
  constexpr std::uint64_t steps = 5;
  for (const int length : {120, 360}) {
    const auto tokens = random_tokens(length, config.vocab_size, 14);
    for (const auto& [by, formula] : expected) {
      for (const int count : {2, 4}) {
        for (const Answer& rank : answers(model, count, by, tokens, random_tokens(steps, config.vocab_size, 15))) {
          const Ledger::Entry total = rank.network.total();
          const std::uint64_t least = steps * layers * formula.messages;
          ASSERT_GE(total.messages, least) << by;
          if (formula.further_bytes == 0) {
            EXPECT_EQ(total.messages, least) << by;
          }
          EXPECT_EQ(total.sent, steps * layers * formula.bytes + (total.messages - least) * formula.further_bytes)
              << by;
          EXPECT_EQ(total.received, total.sent * static_cast<unsigned>(count - 1)) << by;
        }
      }
    }
  }
}

TEST_F(SessionOverRanksTest, TheFirstRankDrawsForAll) {
  const auto prompt = random_tokens(60, model.config().vocab_size, 16);
  std::vector<std::vector<std::int32_t>> drawn(3);
  cluster::run_local_ranks(3, [&](Communicator& ranks) {
    SessionOptions own = options;
    own.attend_by(cluster::rank_attender(ranks));
    Session session(model, arena, own);
    session.append(prompt);
    // Ranks that drew by themselves would part at once.
    Sampler sampler({.temperature = 1, .seed = static_cast<std::uint64_t>(ranks.rank())});
    std::int32_t token = 1;
    for (int i = 0; i < 20; ++i) {
      token = session.next(token, sampler);
      drawn[static_cast<std::size_t>(ranks.rank())].push_back(token);
    }
  });
  EXPECT_EQ(drawn[1], drawn[0]);
  EXPECT_EQ(drawn[2], drawn[0]);
}

TEST_F(SessionOverRanksTest, WhatRanksCannotDoIsRefused) {
  register_method("session_over_ranks_test", [](const MethodOptions& own) { return make_topk(own); });
  cluster::run_local_ranks(2, [&](Communicator& ranks) {
    SessionOptions own = options;
    own.attend_by(cluster::rank_attender(ranks));
    Session session(model, arena, own);
    const SharedMethod own_method = make_method(method("session_over_ranks_test"), model.config().head_dim);
    EXPECT_TRUE(test::refuses([&] { session.set_method(own_method); },
                              {"--attn session_over_ranks_test", "one's own", "over ranks"}));
    own.prefill.kind = PrefillOptions::Kind::window;
    EXPECT_TRUE(test::refuses([&] { Session(model, arena, own); }, {"--prefill window", "exact"}));
  });
}

}  // namespace
}  // namespace hayloft::runtime
