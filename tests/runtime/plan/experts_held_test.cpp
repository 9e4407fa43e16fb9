#include "runtime/plan/experts_held.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "offload/error.h"

namespace hayloft::runtime::plan {
namespace {

ExpertsHeld parse(const std::string& text) {
  return parse_experts_held(nlohmann::json::parse(text), "stats.json");
}

TEST(ExpertsHeld, WithoutMeasurementsAreAsManyAsAreKept) {
  for (const double kept : {0.0, 0.3, 1.0}) EXPECT_EQ(ExpertsHeld().at(kept), kept);
}

TEST(ExpertsHeld, AreTheMeanOverTheLayersAndLieOnStraightLines) {
  const ExpertsHeld held = parse(R"({"schema": "hayloft.attention/1", "layers": [], "experts": [
      {"layer": 0, "experts": 8, "held": [{"kept": 2, "mean": 0.5}, {"kept": 4, "mean": 0.7}]},
      {"layer": 1, "experts": 8, "held": [{"kept": 2, "mean": 0.7}, {"kept": 4, "mean": 0.9}]}]})");
  EXPECT_EQ(held.experts, 8);
  EXPECT_DOUBLE_EQ(held.at(0), 0);
  EXPECT_DOUBLE_EQ(held.at(0.125), 0.3);
  EXPECT_DOUBLE_EQ(held.at(0.25), 0.6);
  EXPECT_DOUBLE_EQ(held.at(0.375), 0.7);
  EXPECT_DOUBLE_EQ(held.at(0.5), 0.8);
  EXPECT_DOUBLE_EQ(held.at(0.75), 0.9);
  EXPECT_DOUBLE_EQ(held.at(1), 1);
}

TEST(ExpertsHeld, OfAnythingElseAreRefusedByName) {
  for (const char* text :
       {"[]", "{}", R"({"schema": "hayloft.plan/1"})", R"({"schema": "hayloft.attention/1"})",
        R"({"schema": "hayloft.attention/1", "experts": 3})", R"({"schema": "hayloft.attention/1", "experts": [1]})",
        R"({"schema": "hayloft.attention/1", "experts": [{"experts": 8, "held": []}]})",
        R"({"schema": "hayloft.attention/1", "experts": [{"experts": 8, "held": [{"kept": 2, "mean": 0.5}]},
            {"experts": 9, "held": [{"kept": 2, "mean": 0.5}]}]})",
        R"({"schema": "hayloft.attention/1", "experts": [{"experts": 8, "held": [{"kept": 0, "mean": 0.5}]}]})",
        R"({"schema": "hayloft.attention/1", "experts": [{"experts": 8, "held": [{"kept": 9, "mean": 0.5}]}]})",
        R"({"schema": "hayloft.attention/1", "experts": [{"experts": 8, "held": [{"kept": 2, "mean": 1.5}]}]})",
        R"({"schema": "hayloft.attention/1", "experts": [{"experts": 8, "held": [{"kept": 2, "mean": null}]}]})"}) {
    try {
      parse(text);
      ADD_FAILURE() << text;
    } catch (const Error& wrong) {
      EXPECT_TRUE(std::string(wrong.what()).starts_with("stats.json: ")) << wrong.what();
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime::plan
