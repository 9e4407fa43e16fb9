#include "runtime/attention/method.h"

#include <gtest/gtest.h>

#include <functional>

#include "offload/error.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

using test::message_of;

TEST(Method, OptionsBehindTheNameOverrideTheDefaults) {
  MethodOptions defaults;
  defaults.rank = 8;
  const MethodOptions options = parse_method("sparq:k=256:window=32", defaults);
  EXPECT_EQ(options.name, "sparq");
  EXPECT_EQ(options.rank, 8);
  EXPECT_EQ(options.k.text(), "256");
  EXPECT_EQ(options.window, 32);
  EXPECT_EQ(parse_method("topk:k=1%", defaults).k.at(0).of(1 << 20), 10486);  // ceil of 1% of 1M
}

TEST(Method, KMayDifferFromLayerToLayerAndTheLastEntryHoldsForTheRest) {
  const MethodOptions options = parse_method("topk:k=512,64,1%", {});
  EXPECT_EQ(options.k.text(), "512,64,1%");
  EXPECT_EQ(options.k.at(0).of(4096), 512);
  EXPECT_EQ(options.k.at(1).of(4096), 64);
  EXPECT_EQ(options.k.at(2).of(4096), 41);
  EXPECT_EQ(options.k.at(31).of(4096), 41);
}

TEST(Method, OneLayersBudgetIsSetWithoutTouchingTheOthers) {
  Budgets k = parse_budgets("512,64", "k");
  k.set(2, Budget{96, 0});
  EXPECT_EQ(k.text(), "512,64,96,64");
  k.set(0, Budget{1, 0});
  EXPECT_EQ(k.text(), "1,64,96,64");
}

TEST(Method, ACommaBeginsAnotherMethodOnlyWhereANameFollows) {
  using List = std::vector<std::string>;
  EXPECT_EQ(split_methods("dense,sparq:r=8,topk"), (List{"dense", "sparq:r=8", "topk"}));
  EXPECT_EQ(split_methods("sparq:k=512,64:r=8,dense"), (List{"sparq:k=512,64:r=8", "dense"}));
  EXPECT_EQ(split_methods("dense,sparse"), (List{"dense", "sparse"}));  // to be refused by its name
}

TEST(Method, AnUnknownNameOrKeyIsAnErrorThatListsTheKnownOnes) {
  EXPECT_NE(message_of([] { parse_method("sparse", {}); }).find("dense, sparq, topk, window"), std::string::npos);
  EXPECT_NE(message_of([] { parse_method("sparq:rank=3", {}); }).find("unknown option 'rank'"), std::string::npos);
}

TEST(Method, ValuesOutOfRangeAreErrorsThatNameTheOption) {
  auto make = [](std::string_view text) { return message_of([&] { make_method(parse_method(text, {}), 64); }); };
  EXPECT_NE(make("sparq:r=65").find("--attn-r 65"), std::string::npos);
  EXPECT_NE(make("sparq:r=0").find("--attn-r 0"), std::string::npos);
  EXPECT_NE(make("sparq:k=16:window=17").find("--attn-window 17"), std::string::npos);
  EXPECT_NE(make("window:window=0:sinks=0").find("nothing to attend"), std::string::npos);
  EXPECT_NE(make("topk:k=0").find("k 0"), std::string::npos);
  EXPECT_NE(make("topk:k=0%").find("k 0%"), std::string::npos);
  EXPECT_NE(make("topk:k=101%").find("101%"), std::string::npos);
  EXPECT_EQ(make("sparq:r=64"), "(no Error)");
}

TEST(Method, TheLocalWindowOfSparqIsAQuarterOfKUnlessGiven) {
  EXPECT_EQ(make_method(parse_method("sparq:k=128", {}), 64)->window(1 << 20), 32);
  EXPECT_EQ(make_method(parse_method("sparq:k=128:window=0", {}), 64)->window(1 << 20), 0);
  EXPECT_EQ(make_method(parse_method("topk:k=128", {}), 64)->window(1 << 20), 0);
  EXPECT_EQ(make_method(parse_method("window:k=128:sinks=4", {}), 64)->window(1 << 20), 124);
}

}  // namespace
}  // namespace hayloft::runtime
