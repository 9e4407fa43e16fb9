#include "runtime/plan/plan_network.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/plan/plan.h"
#include "tests/runtime/decode/session_fixture.h"
#include "tests/support/refusal.h"

// Tests what a plan says of ranks, beside ranks that were run.
namespace hayloft::runtime::plan {
namespace {

class PlanOfRanksTest : public SessionTest {
 protected:
  PlanRequest request_of(int ranks, std::int64_t tokens) {
    PlanRequest request;
    request.config = model.config();
    request.session = options;
    request.session.cache.shard.ranks = ranks;
    request.tokens = tokens;
    request.host_budget = request.available_bytes = std::uint64_t{1} << 40;
    for (const char* text : {"dense",
                             "window:k=20",
                             "topk:k=20:window=4",
                             "topk:k=20:select=kv-head",
                             "sparq:r=4:k=24",
                             "sparq:r=4:k=24:group=logits",
                             "sparq:r=4:k=2000",
                             "flexgen:k=24",
                             "pages:k=70:page=16",
                             "pages:k=4:page=16:group=logits",
                             "oracle:k=24",
                             "oracle:k=24:select=query-head",
                             "lowrank:r=4:k=24:group=logits",
                             "topk:k=20:engine=faiss",
                             "ann:k=24",
                             "h2o:k=24",
                             "topk:k=24:rest=draw",
                             "topk:k=24:rest=calibrated",
                             "sparq:r=4:k=40:rest=draw",
                             "lowrank:r=4:k=24:rest=draw",
                             "oracle:k=24:rest=draw",
                             "sparq:r=4:k=2000:rest=draw"}) {
      request.methods.push_back(method(text));
    }
    return request;
  }

  // As planned, some of the further messages among it.
  static void expect_sent(const cluster::Ledger::Entry& step, const NetworkStep& planned, const std::string& method) {
    ASSERT_GE(step.messages, planned.gathered) << method;
    const std::uint64_t further = step.messages - planned.gathered;
    EXPECT_LE(further, planned.further) << method;
    const std::uint64_t one = planned.further == 0 ? 0 : planned.further_bytes / planned.further;
    EXPECT_EQ(step.sent, planned.bytes + further * one) << method;
  }
};

TEST_F(PlanOfRanksTest, MemoryAndMessagesAreThoseOfARun) {
  constexpr int tokens = 300;
  const auto prompt = random_tokens(tokens, model.config().vocab_size, 1);
  for (const int count : {2, 3, 4}) {
    const Plan plan = make_plan(request_of(count, tokens), nullptr);
    EXPECT_EQ(plan.ranks, count);
    cluster::run_local_ranks(count, [&](cluster::Communicator& ranks) {
      SessionOptions own = options;
      own.attend_by(cluster::rank_attender(ranks));
      offload::Arena own_memory(topology, {.budget_bytes = 64 << 20});
      Session context(model, own_memory, own);
      for (const PlannedMethod& planned : plan.methods) {
        context.attach_method(*make_method(planned.attn, model.config().head_dim));
      }
      context.append(prompt);
      if (ranks.rank() == 0) {
        EXPECT_EQ(own_memory.used_bytes(), plan.memory.store());
      } else {
        EXPECT_LE(own_memory.used_bytes(), plan.memory.store());
      }
      for (const PlannedMethod& planned : plan.methods) {
        Session session = context.fork();
        session.set_method(make_method(planned.attn, model.config().head_dim));
        const cluster::Ledger before = ranks.ledger();
        Sampler sampler({.temperature = 0});
        session.next(1, sampler);
        const cluster::Ledger step = ranks.ledger().since(before);
        cluster::Ledger::Entry gathered = step.total();
        gathered.messages -= step.of(cluster::Traffic::token).messages;
        gathered.sent -= step.of(cluster::Traffic::token).sent;
        EXPECT_EQ(planned.network->messages, planned.network->gathered + 1);
        expect_sent(gathered, *planned.network, method_label(planned.attn));
      }
    });
  }
}

TEST_F(PlanOfRanksTest, PlanesAndAutoSendWhatTheyArePlannedToSend) {
  constexpr int tokens = 300;
  options.cache.columns = offload::ColumnFormat::planes;
  PlanRequest request = request_of(3, tokens);
  request.methods.clear();
  for (const char* text : {"planes:bits=8:k=24", "sparq:r=4:by=qk:k=24", "auto:k=24"}) {
    request.methods.push_back(method(text));
  }
  const Plan plan = make_plan(request, nullptr);
  cluster::run_local_ranks(3, [&](cluster::Communicator& ranks) {
    SessionOptions own = options;
    own.attend_by(cluster::rank_attender(ranks));
    Session context(model, arena, own);
    context.append(random_tokens(tokens, model.config().vocab_size, 1));
    for (const PlannedMethod& planned : plan.methods) {
      Session session = context.fork();
      session.set_method(make_method(planned.attn, model.config().head_dim));
      const cluster::Ledger before = ranks.ledger();
      session.step(1);
      const auto step = ranks.ledger().since(before).total();
      expect_sent(step, *planned.network, method_label(planned.attn));
    }
  });
}

TEST_F(PlanOfRanksTest, MessagesDoNotGrowWithTheContext) {
  const Plan shorter = make_plan(request_of(4, 10000), nullptr), longer = make_plan(request_of(4, 1000000), nullptr);
  for (std::size_t i = 0; i < shorter.methods.size(); ++i) {
    // But for the sample that lines of a rest by scores are fitted over, of 128 to 256 positions.
    const bool by_lines = rest_of(shorter.methods[i].attn).by_scores();
    const auto queries = static_cast<std::uint64_t>(model.config().global_layers() * model.config().query_heads);
    const std::uint64_t more = by_lines ? 2 * queries * 128 * sizeof(float) : 0;
    EXPECT_LE(longer.methods[i].network->bytes, shorter.methods[i].network->bytes + more);
    EXPECT_LE(shorter.methods[i].network->bytes, longer.methods[i].network->bytes + more);
    EXPECT_EQ(shorter.methods[i].network->messages, longer.methods[i].network->messages);
  }
}

TEST_F(PlanOfRanksTest, ANetworkTakesItsLatenciesAndItsRate) {
  const NetworkStep step{.messages = 10, .gathered = 9, .bytes = 125000};
  const Network network{.gigabits_per_second = 1, .latency_us = 50};
  EXPECT_EQ(network_ms(step, network, 1), 0);
  EXPECT_DOUBLE_EQ(network_ms(step, network, 2), 10 * 0.05 + 1);      // a million bits from the other one
  EXPECT_DOUBLE_EQ(network_ms(step, network, 5), 10 * 0.05 * 3 + 4);  // three rounds reach eight ranks
  PlanRequest request = request_of(4, 1000);
  EXPECT_FALSE(make_plan(request, nullptr).methods[0].network_ms);
  request.network = network;
  const Plan plan = make_plan(request, nullptr);
  EXPECT_DOUBLE_EQ(*plan.methods[0].network_ms, network_ms(*plan.methods[0].network, network, 4));
  const auto json = nlohmann::json::parse(plan_json({plan}))["plans"][0];
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["methods"][0]["network"]["sent_bytes_per_token"], plan.methods[0].network->bytes);
  EXPECT_EQ(json["methods"][0]["network"]["received_bytes_per_token"], 3 * plan.methods[0].network->bytes);
  EXPECT_NE(plan_table(plan).find("Between 4 ranks"), std::string::npos);
}

TEST_F(PlanOfRanksTest, OneMachineHasNoNetwork) {
  const Plan plan = make_plan(request_of(1, 1000), nullptr);
  EXPECT_FALSE(plan.methods[0].network);
  EXPECT_TRUE(nlohmann::json::parse(plan_json({plan}))["plans"][0]["methods"][0]["network"].is_null());
  EXPECT_EQ(plan_table(plan).find("ranks"), std::string::npos);
}

TEST(Network, IsARateAndALatency) {
  EXPECT_EQ(parse_network("100,2.5").gigabits_per_second, 100);
  EXPECT_EQ(parse_network("100,2.5").latency_us, 2.5);
  for (const char* text : {"", "10", "10,", "0,1", "-1,1", "10,30,2", "10,x", "nan,1", "1,-1"}) {
    EXPECT_TRUE(test::refuses([&] { parse_network(text); }, {"--network", "10,30"})) << text;
  }
}

}  // namespace
}  // namespace hayloft::runtime::plan
