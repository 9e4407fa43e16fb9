#include "runtime/fidelity/attention_statement.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/runtime/fidelity/audit_fixture.h"

namespace hayloft::runtime {
namespace {

using testing::TinyRun;

TEST(AttentionStatement, DenseIsExactAndWhatSelectsSaysHowMuchItAttendedTo) {
  TinyRun run("llama");
  Session exact = run.session.fork(), selecting = run.session.fork();
  run.decode(exact, "dense", 4);
  run.decode(selecting, "sparq:r=4:k=16", 4);
  AttentionStatement statement;
  EXPECT_TRUE(statement.exact());
  EXPECT_EQ(statement.text(), "exact") << "of no steps";
  statement.add(exact);
  EXPECT_EQ(statement.text(), "exact");
  EXPECT_EQ(statement.text(/*named=*/true).rfind("exact: dense in ", 0), 0u);

  AttentionStatement approximate;
  approximate.add(selecting);
  EXPECT_FALSE(approximate.exact());
  EXPECT_DOUBLE_EQ(approximate.share(), selecting.attended_share());
  EXPECT_EQ(approximate.text().rfind("approximate: ", 0), 0u) << approximate.text();
  EXPECT_NE(approximate.text().find("sparq r=4 k=16"), std::string::npos) << approximate.text();

  statement.add(approximate);  // one approximate answer among exact ones
  EXPECT_FALSE(statement.exact());
  EXPECT_DOUBLE_EQ(statement.share(), (4 + 4 * selecting.attended_share()) / 8);
}

// As those of the first Mistral do: no layer has a method, and none leaves out what it sees.
TEST(AttentionStatement, OfLayersThatAllSlideIsExact) {
  TinyRun run("mistral-sliding");
  ASSERT_EQ(run.model.config().global_layers(), 0);
  Session session = run.session.fork();
  run.decode(session, "dense", 3);
  AttentionStatement statement;
  statement.add(session);
  EXPECT_EQ(statement.text(), "exact");
  EXPECT_EQ(statement.text(/*named=*/true), "exact");
  EXPECT_EQ(statement_members(statement)["attended_share"], 1.0);
  statement.int8_products = true;
  EXPECT_EQ(statement.text(/*named=*/true).find("approximate: every position attended to; inputs"), 0u);
}

TEST(AttentionStatement, OverRanksDenseAloneIsExact) {
  AttentionStatement statement;
  statement.over_ranks = true;
  statement.steps = 2;
  statement.methods = {{"dense", 4}};
  EXPECT_EQ(statement.text(), "exact");
  statement.methods["sparq r=16 k=128"] = 2;
  EXPECT_EQ(statement.text(), "approximate: dense in 4 steps x layers, sparq r=16 k=128 in 2");
}

TEST(AttentionStatement, NothingIsExactBehindAPromptThatWasNotReadExactly) {
  TinyRun run("llama");
  Session session = run.session.fork();
  session.set_prefill({.kind = PrefillOptions::Kind::window, .window = 16});
  AttentionStatement before;
  before.add(session);
  EXPECT_TRUE(before.exact()) << "nothing was read by the window yet";
  session.append(std::vector<std::int32_t>{5, 6, 7});
  run.decode(session, "dense", 2);
  AttentionStatement statement;
  statement.add_reading("window w=16 s=4");
  EXPECT_EQ(statement.text(), "approximate: the prompt was read by window w=16 s=4") << "of no steps";
  statement.add(session);
  EXPECT_FALSE(statement.exact());
  EXPECT_EQ(statement.text().rfind("approximate: 100.0% of the positions", 0), 0u) << statement.text();
  EXPECT_NE(statement.text().find("; the prompt was read by window w=16 s=4"), std::string::npos);
  statement.measurable = true;
  EXPECT_EQ(statement.text().find("--audit"), std::string::npos) << "its own steps attended to all";
}

TEST(AttentionStatement, APromptThatAWindowHeldWholeIsExactThoughTheAnswerIsLonger) {
  TinyRun run("llama");
  Session session = run.session.fork();
  session.set_prefill({.kind = PrefillOptions::Kind::window, .window = session.tokens() + 1, .sinks = 0});
  session.append(std::vector<std::int32_t>{5});
  run.decode(session, "dense", 2);
  AttentionStatement statement;
  statement.add(session);
  EXPECT_TRUE(statement.exact()) << statement.text();
}

TEST(AttentionStatement, NothingIsExactOfInputsRoundedTo8Bits) {
  AttentionStatement statement, other;
  statement.attended = statement.steps = 2;
  other = statement;
  other.int8_products = true;
  EXPECT_TRUE(statement.exact());
  statement.add(other);
  EXPECT_FALSE(statement.exact());
  EXPECT_EQ(statement.text(), "approximate: every position attended to; inputs to quantised weights rounded to 8 bits");
  const auto json = nlohmann::json::parse(statement_json(statement));
  EXPECT_EQ(json["exact"], false);
  EXPECT_EQ(json["products"], "int8");
  EXPECT_EQ(json["attended_share"], 1.0);
  statement.attended = 3;
  statement.methods = {{"topk k=16", 4}};
  EXPECT_EQ(statement.text(),
            "approximate: 75.0% of the positions attended to, by topk k=16 in 4 steps x layers; inputs "
            "to quantised weights rounded to 8 bits");
  EXPECT_EQ(attention_statement(1, "dense", {}), "exact");
  EXPECT_EQ(attention_statement(1, "dense", {}, gpu::Products::int8), other.text());
}

TEST(AttentionStatement, NothingIsExactOfKeysAndValuesKeptInFewerBits) {
  AttentionStatement statement, other;
  statement.attended = statement.steps = 2;
  other = statement;
  other.rows = offload::RowFormat::int4;
  statement.rows = offload::RowFormat::int8;
  statement.add(other);
  EXPECT_FALSE(statement.exact());
  EXPECT_EQ(statement.text(), "approximate: every position attended to; keys and values kept in 4 bits");
  const auto json = nlohmann::json::parse(statement_json(statement));
  EXPECT_EQ(json["exact"], false);
  EXPECT_EQ(json["rows"], "int4");
  EXPECT_EQ(json["attended_share"], 1.0);
  EXPECT_EQ(attention_statement(1, "dense", {}, gpu::Products::exact, "", offload::RowFormat::int4), statement.text());
}

TEST(AttentionStatement, WeighsWhatWasMeasuredByItsSamples) {
  AttentionStatement one, other;
  one.mass = 0.9;
  one.samples = 1;
  other.mass = 0.5;
  other.samples = 3;
  one.add(other);
  EXPECT_DOUBLE_EQ(*one.mass, 0.6);
  EXPECT_EQ(one.samples, 4);
}

TEST(AttentionStatement, HasTheSameAsJson) {
  AttentionStatement statement;
  statement.steps = 2;
  statement.attended = 1;
  statement.methods = {{"topk k=16", 4}};
  const auto json = nlohmann::json::parse(statement_json(statement));
  EXPECT_EQ(json["attention"], statement.text());
  EXPECT_EQ(json["exact"], false);
  EXPECT_EQ(json["attended_share"], 0.5);
  EXPECT_TRUE(json["mass"].is_null());
}

}  // namespace
}  // namespace hayloft::runtime
