#include "runtime/attention/method.h"

#include <gtest/gtest.h>

#include <limits>

#include "offload/error.h"
#include "offload/text/list.h"
#include "runtime/attention/method_option_table.h"
#include "tests/support/refusal.h"

namespace hayloft::runtime {
namespace {

using test::message_of;
using test::refuses;

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

TEST(Method, RanksByTheOptionsThatItUsesAndByItsNature) {
  MethodOptions given;  // as flags give them to all methods of a run
  given.per = index::SelectPer::query_head;
  given.rule = index::GroupRule::logits;
  given.temperature = index::Temperature::rank;
  given.order = index::ComponentOrder::qk;
  const auto of = [&](const char* name) { return ranking_options(parse_method(name, given)); };
  EXPECT_FALSE(of("sparq").per_query_head()) << "SparQ selects per KV head, whatever others are told";
  EXPECT_EQ(of("sparq").order, index::ComponentOrder::qk);
  EXPECT_EQ(of("sparq").bits, 0);
  EXPECT_EQ(of("planes:bits=20").bits, 20);
  EXPECT_TRUE(of("lowrank").per_query_head());
  EXPECT_FALSE(of("lowrank").needs_planes());
  EXPECT_EQ(of("flexgen").temperature, index::Temperature::coverage);
  EXPECT_EQ(of("flexgen").rule, index::GroupRule::logits);
  EXPECT_TRUE(ranking_options(parse_method("topk", {})).per_query_head());
  EXPECT_FALSE(ranking_options(parse_method("pages", {})).per_query_head());
  EXPECT_EQ(of("sparq").lists(2, 6), 2);
  EXPECT_EQ(of("oracle").lists(2, 6), 6);
}

TEST(Method, KMayDifferFromLayerToLayerAndTheLastEntryHoldsForTheRest) {
  const MethodOptions options = parse_method("topk:k=512,64,1%", {});
  EXPECT_EQ(options.k.text(), "512,64,1%");
  EXPECT_EQ(options.k.at(0).of(4096), 512);
  EXPECT_EQ(options.k.at(1).of(4096), 64);
  EXPECT_EQ(options.k.at(2).of(4096), 41);
  EXPECT_EQ(options.k.at(31).of(4096), 41);
}

TEST(Method, AKForALayerThatTheModelLacksIsAnError) {
  for (const char* text : {"topk:k=512,64", "h2o:k=512,64", "auto:k=512,64"}) {
    const SharedMethod method = make_method(parse_method(text, {}), 64);
    EXPECT_NO_THROW(method->require_layers(2));
    EXPECT_NO_THROW(method->require_layers(30));
    EXPECT_TRUE(test::refuses([&] { method->require_layers(1); }, {"--attn-k 512,64", "2 values", "has 1"})) << text;
  }
  EXPECT_NO_THROW(make_method(parse_method("topk", {}), 64)->require_layers(0));
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

TEST(Method, AnOptionThatAMethodDoesNotUseIsAnErrorThatListsThoseItUses) {
  EXPECT_TRUE(
      test::refuses([] { parse_method("topk:r=8", {}); }, {"topk does not use 'r'", "k, window, seed, rest, group"}));
  EXPECT_TRUE(test::refuses([] { parse_method("dense:k=64", {}); }, {"dense does not use 'k'", "takes no options"}));
  EXPECT_TRUE(test::refuses([] { parse_method("sparq:factory=Flat", {}); }, {"sparq does not use 'factory'"}));
  EXPECT_TRUE(test::refuses([] { parse_method("sparq:Flat", {}); }, {"unknown option 'Flat'"}));
  EXPECT_TRUE(test::refuses([] { parse_method("topk:k=5:k=6", {}); }, {"--attn topk:k=5:k=6: 'k' stands twice"}));
  EXPECT_TRUE(test::refuses([] { parse_method("ann:Flat:factory=Flat", {}); }, {"'factory' stands twice"}));
}

TEST(Method, AnOptionThatChangesNothingBesideOthersIsAnErrorThatSaysWhy) {
  const auto idle = [](const char* text) { return [=] { parse_method(text, {}); }; };
  for (const char* text : {"sparq:seed=3", "topk:seed=1", "oracle:seed=9:rest=mean", "planes:rest=calibrated:seed=2"}) {
    EXPECT_TRUE(test::refuses(idle(text), {text, "'seed' has no effect", "rest=draw"}));
  }
  for (const char* text : {"topk:group=logits", "oracle:group=logits:select=query-head"}) {
    EXPECT_TRUE(test::refuses(idle(text), {text, "'group' has no effect", "select=kv-head"}));
  }
  EXPECT_TRUE(test::refuses(idle("topk:group=softmax:engine=faiss"),
                            {"'group' has no effect: topk ranks for each query head alone"}))
      << "and Faiss for no group";
  EXPECT_TRUE(test::refuses(idle("h2o:recent=0.3:window=4"), {"'recent' has no effect", "window"}));
  for (const char* text : {"sparq:seed=3:rest=draw", "lowrank:seed=3", "topk:group=logits:select=kv-head",
                           "oracle:group=logits", "h2o:recent=0.3"}) {
    EXPECT_NO_THROW(parse_method(text, {})) << text;
  }
  MethodOptions drawn;
  drawn.rest = Rest::Kind::draw;
  EXPECT_NO_THROW(parse_method("sparq:seed=3", drawn));
}

TEST(Method, TheMeanValueIsNotBothLeftOutAndAskedFor) {
  for (const char* method : {"sparq:mean=off:rest=mean", "planes:rest=calibrated:mean=off"}) {
    EXPECT_TRUE(test::refuses([&] { make_method(parse_method(method, {}), 64); }, {"--attn-rest", "--mean-value off"}));
  }
  EXPECT_EQ(rest_of(parse_method("sparq:mean=off:rest=draw", {})).kind, Rest::Kind::draw);
  EXPECT_EQ(rest_of(parse_method("sparq:mean=off", {})).kind, Rest::Kind::none);
}

TEST(Method, EveryOptionIsReadCheckedAndPrintedByItsEntry) {
  const std::vector<std::string> names = method_names();
  for (const MethodOption& option : method_option_table()) {
    SCOPED_TRACE(option.key);
    int users = 0;
    for (const std::string& name : names) users += uses(name, option) ? 1 : 0;
    EXPECT_EQ(users, static_cast<int>(split_list(option.methods, ' ').size())) << "not a method: " << option.methods;
    EXPECT_TRUE(test::refuses([&] { parse_method(fmt::format("{}:{}", names.front(), option.key), {}); },
                              {fmt::format("'{}'", option.key)}));
    if (option.key == "factory") continue;  // any text is one, until a head dimension is known
    MethodOptions read;
    EXPECT_TRUE(test::refuses([&] { read_method_option(option, read, "nonsense", flag(option)); }, {flag(option)}));
    if (option.standard.empty()) continue;
    read_method_option(option, read, option.standard, flag(option));
    EXPECT_EQ(read, MethodOptions()) << "help says that it is usually " << option.standard;
  }
}

TEST(Method, WordsThatHelpOffersAreUnderstood) {
  for (const MethodOption& option : method_option_table()) {
    if (option.value.find('|') == std::string_view::npos) continue;
    for (const std::string_view word : split_list(option.value, '|')) {
      MethodOptions read;
      EXPECT_EQ(test::message_of([&] { read_method_option(option, read, word, flag(option)); }), "(no Error)");
    }
  }
}

TEST(Method, ALabelTellsWhatIsNotAsUsualInAnOrderThatStays) {
  const auto label = [](std::string_view text) { return method_label(parse_method(text, {})); };
  EXPECT_EQ(label("dense"), "dense");
  EXPECT_EQ(label("sparq:tau=d:mean=off:window=0:group=logits:k=64:r=8"),
            "sparq r=8 k=64 w=0 mean=off tau=d group=logits");
  EXPECT_EQ(label("ann:IVF64,Flat:k=1%:nprobe=8:ef=9:rerank=2:aware=off"),
            "ann IVF64,Flat nprobe=8 ef=9 rerank=2 aware=off k=1%");
  EXPECT_EQ(label("ann:factory=IVF64,Flat"), "ann IVF64,Flat k=128");
  EXPECT_EQ(label("window:window=64:sinks=2"), "window w=64 s=2");
  EXPECT_EQ(label("pages:page=16"), "pages k=128 page=16");
  EXPECT_EQ(label("h2o:recent=0.25"), "h2o k=128 recent=0.25");
  EXPECT_EQ(label("lowrank:seed=7:tau=r"), "lowrank r=16 k=128 seed=7 tau=r");
  EXPECT_EQ(label("topk:engine=faiss:select=query-head"), "topk k=128 faiss select=query-head");
}

TEST(Method, ValuesOutOfRangeAreErrorsThatNameTheOption) {
  auto make = [](std::string_view text) { return message_of([&] { make_method(parse_method(text, {}), 64); }); };
  EXPECT_NE(make("sparq:r=65").find("--attn-r 65"), std::string::npos);
  EXPECT_NE(make("sparq:r=0").find("--attn sparq: r 0: must be between 1"), std::string::npos);
  MethodOptions zero;
  zero.name = "sparq";
  zero.rank = 0;
  EXPECT_TRUE(test::refuses([&] { make_method(zero, 64); }, {"--attn-r 0", "between 1 and the head dimension, 64"}));
  EXPECT_NE(make("sparq:k=16:window=17").find("--attn-window 17"), std::string::npos);
  EXPECT_NE(make("window:window=0:sinks=0").find("nothing to attend"), std::string::npos);
  EXPECT_NE(make("window:sinks=500").find("--attn-sinks 500: the sinks are counted in --attn-k, which is only 128"),
            std::string::npos);
  EXPECT_NE(make("window:k=32:window=64").find("--attn-window 64 and --attn-sinks 4"), std::string::npos);
  EXPECT_NE(make("window:k=32:window=64").find("raise it to 68"), std::string::npos);
  EXPECT_EQ(make("window:k=32:window=28"), "(no Error)");
  EXPECT_EQ(make("window:k=32,64:sinks=31"), "(no Error)");
  EXPECT_NE(make("topk:k=0").find("k 0"), std::string::npos);
  EXPECT_NE(make("topk:k=0%").find("k 0%"), std::string::npos);
  EXPECT_NE(make("topk:k=101%").find("101%"), std::string::npos);
  EXPECT_EQ(make("sparq:r=64"), "(no Error)");
}

// A program can set in its own options what no text can say.
TEST(Method, FieldsOutOfRangeAreErrorsThatNameTheOption) {
  const auto refused = [](const char* name, auto set, const char* said) {
    MethodOptions options = parse_method(name, {});
    set(options);
    return test::refuses([&] { make_method(options, 64); }, {said});
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* name :
       {"sparq", "topk", "window", "ann", "flexgen", "h2o", "lowrank", "pages", "oracle", "planes", "auto"}) {
    for (const Budget k : {Budget{-1, 0}, Budget{0, 0}, Budget{0, -0.5}, Budget{0, 1.5}, Budget{0, nan}}) {
      EXPECT_TRUE(refused(
          name, [&](auto& options) { options.k = Budgets(k); }, "--attn-k "))
          << name;
      EXPECT_TRUE(refused(
          name,
          [&](auto& options) {
            options.k = Budgets({Budget{}, k});
          },
          "--attn-k "))
          << name;
    }
  }
  for (const double recent : {nan, -1.0, 1.5}) {
    EXPECT_TRUE(refused(
        "h2o", [&](auto& options) { options.recent = recent; }, "--attn-recent "));
  }
  EXPECT_TRUE(refused(
      "ann", [](auto& options) { options.probes = -1; }, "--attn-nprobe -1"));
  EXPECT_TRUE(refused(
      "ann:HNSW8", [](auto& options) { options.ef = -1; }, "--attn-ef -1"));
  EXPECT_TRUE(refused(
      "ann:SQ8", [](auto& options) { options.rerank = -1; }, "--attn-rerank -1"));
}

TEST(Method, OptionsThatAnIndexDoesNotReadAreRefusedByName) {
  auto make = [](std::string_view text) { return message_of([&] { make_method(parse_method(text, {}), 64); }); };
  EXPECT_EQ(make("ann:HNSW16:nprobe=3").rfind("--attn-nprobe 3: ann:HNSW16 has no lists", 0), 0u);
  EXPECT_EQ(make("ann:SQ8:nprobe=3").rfind("--attn-nprobe 3", 0), 0u);
  EXPECT_EQ(make("ann:IVF4,Flat:ef=7").rfind("--attn-ef 7: ann:IVF4,Flat has no graph", 0), 0u);
  EXPECT_EQ(make("ann:ef=7").rfind("--attn-ef 7: ann has no graph", 0), 0u);
  EXPECT_EQ(make("ann:rerank=2").rfind("--attn-rerank 2: ann has no codes", 0), 0u);
  EXPECT_EQ(make("ann:HNSW16,Flat:rerank=2").rfind("--attn-rerank 2", 0), 0u);
  for (const char* read : {"ann:nprobe=3", "ann:IVF4,SQ8:nprobe=3:rerank=2", "ann:HNSW16,SQ8:ef=7:rerank=2",
                           "ann:SQ8:rerank=2", "ann:HNSW16:ef=7"}) {
    EXPECT_EQ(make(read), "(no Error)") << read;
  }
}

TEST(Method, TheLocalWindowOfSparqIsAQuarterOfKUnlessGiven) {
  EXPECT_EQ(make_method(parse_method("sparq:k=128", {}), 64)->window(1 << 20), 32);
  EXPECT_EQ(make_method(parse_method("sparq:k=128:window=0", {}), 64)->window(1 << 20), 0);
  EXPECT_EQ(make_method(parse_method("topk:k=128", {}), 64)->window(1 << 20), 0);
  EXPECT_EQ(make_method(parse_method("window:k=128:sinks=4", {}), 64)->window(1 << 20), 124);
}

// The last: what is registered stays for as long as the process lives.
TEST(Method, ARegisteredOneIsKnownByItsNameWithTheOptionsOfASelection) {
  EXPECT_FALSE(is_registered_method("mine"));
  register_method("mine", make_topk);
  EXPECT_TRUE(is_registered_method("mine"));
  const MethodOptions options = parse_method("mine:k=64:window=8:select=query-head", {});
  EXPECT_EQ(method_label(options), "mine k=64 w=8 select=query-head");
  EXPECT_EQ(make_method(options, 64)->options(), options);
  EXPECT_TRUE(refuses([] { parse_method("mine:r=4", {}); }, {"mine does not use 'r'"}));
  EXPECT_TRUE(refuses([] { register_method("mine", make_topk); }, {"already"}));
  EXPECT_TRUE(refuses([] { register_method("topk", make_topk); }, {"already"}));
  for (const char* const name : {"", "a:b", "a,b", "a b"}) {
    EXPECT_TRUE(refuses([&] { register_method(name, make_topk); }, {"cannot name"}));
  }
}

TEST(Method, ARegisteredNameComesWithAFunctionThatMakesOne) {
  EXPECT_TRUE(test::refuses([] { register_method("nobody", nullptr); }, {"'nobody'", "without the function"}));
  EXPECT_FALSE(is_registered_method("nobody"));
  register_method("nothing", [](const MethodOptions&) { return std::unique_ptr<Method>(); });
  EXPECT_TRUE(test::refuses([] { make_method(parse_method("nothing", {}), 64); }, {"--attn nothing", "makes no"}));
}

}  // namespace
}  // namespace hayloft::runtime
