#include "offload/text/ordered_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/refusal.h"

namespace hayloft {
namespace {

using test::refuses;

TEST(OrderedJson, KeepsTheOrderOfMembers) {
  const std::string text = R"({"z":1,"a":{"y":[{"c":null,"b":true}],"x":-2.5},"":"é"})";
  EXPECT_EQ(parse_ordered_json(text).dump(), text);
}

// Python's json.loads keeps the first place and the last value.
TEST(OrderedJson, TakesTheLastOfEqualNamesInTheFirstPlace) {
  EXPECT_EQ(parse_ordered_json(R"({"a":1,"b":2,"a":3})").dump(), R"({"a":3,"b":2})");
  std::string many = "{";
  for (int i = 0; i < 40; ++i) many += "\"k" + std::to_string(i % 30) + "\":" + std::to_string(i) + ",";
  many.back() = '}';
  const nlohmann::ordered_json parsed = parse_ordered_json(many);
  EXPECT_EQ(parsed.size(), 30U);
  EXPECT_EQ(parsed.begin().key(), "k0");
  EXPECT_EQ(parsed.at("k0"), 30);
  EXPECT_EQ(parsed.at("k29"), 29);
}

TEST(OrderedJson, SaysWhereATextIsNoJson) {
  EXPECT_TRUE(refuses([] { parse_ordered_json(R"({"a":1,})"); }, {"not valid JSON at byte 8 of 8"}));
  EXPECT_TRUE(refuses([] { parse_ordered_json("1 2"); }, {"not valid JSON at byte"}));
  EXPECT_TRUE(refuses([] { parse_ordered_json(std::string_view("1\0{", 3)); }, {"not valid JSON at byte 2 of 3"}));
  EXPECT_TRUE(refuses([] { parse_ordered_json("1e999"); }, {"out of range"}));
  EXPECT_TRUE(refuses([] { parse_ordered_json(std::string(1000, '[')); }, {"more than 200 deep"}));
}

TEST(OrderedJson, RefusesOrKeepsLongIntegers) {
  EXPECT_EQ(parse_ordered_json("18446744073709551615").dump(), "18446744073709551615");
  EXPECT_TRUE(refuses([] { parse_ordered_json("[18446744073709551616]"); }, {"more than 64 bits"}));
  const auto kept = parse_ordered_json("-18446744073709551616", LongIntegers::kept);
  ASSERT_TRUE(kept.is_binary());
  EXPECT_EQ(std::string(kept.get_binary().begin(), kept.get_binary().end()), "-18446744073709551616");
}

}  // namespace
}  // namespace hayloft
