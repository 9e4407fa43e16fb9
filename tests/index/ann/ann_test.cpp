#include "index/ann/ann.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/index/ann/ann_fixture.h"
#include "tests/support/refusal.h"

namespace hayloft::index {
namespace {

using test::refuses;
using testing::expect_lists;
using testing::Fixture;
using testing::Positions;

// Keys that are kept as they are must be found as the own kernel finds it when everything is looked at. The random keys
// are so far apart that no two of them are level with the last one found to within f32 rounding.
TEST(Ann, KindsThatReadRowsFindWhatTheOwnKernelFindsWhenTheyLookEverywhere) {
  for (const int d : {64, 128}) {
    const Fixture fixture(d, 9000);
    for (const bool aware : {false, true}) {
      for (const char* factory : {"Flat", "IVF64,Flat"}) {
        const Ann ann = fixture.build(factory, aware);
        for (const int k : {1, 100, 3000}) {
          AnnSearch search = fixture.asked(k);
          search.probes = 64;
          AnnCost cost;
          EXPECT_EQ(fixture.find(ann, search, &cost), fixture.exact(k, search.limit)) << factory << " k " << k;
          EXPECT_EQ(cost.keys, static_cast<std::uint64_t>(fixture.query_heads) * 9000) << factory;
        }
      }
    }
  }
}

// A graph's beam as long as half the keys: what it misses are keys that no other links to from the beam, a few in a
// thousand. Inner products of keys with each other (aware off) link the longest ones over and over, so less is
// promised.
TEST(Ann, GraphsFindNearlyAllWithALongBeam) {
  const Fixture fixture(64, 9000);
  for (const bool aware : {false, true}) {
    const Ann ann = fixture.build("HNSW16", aware);
    AnnSearch search = fixture.asked(64);
    search.ef = 4500;
    const Positions found = fixture.find(ann, search);
    expect_lists(found, 64, search.limit);
    EXPECT_GE(fixture.recall(found, 64, search.limit), aware ? 0.99 : 0.8) << aware;
  }
}

TEST(Ann, WhatIsNotYetIndexedIsComparedExactly) {
  const Fixture fixture;
  Ann ann({"IVF32,Flat", true}, 1, 2, 64);
  AnnSearch search = fixture.asked(100);
  search.probes = 32;
  EXPECT_EQ(fixture.find(ann, search), fixture.exact(100, search.limit)) << "nothing is built";
  ann.sync_with_store(std::vector{fixture.first(18432)}, fixture.threads);
  EXPECT_EQ(ann.tokens(0), 18432);
  EXPECT_EQ(fixture.find(ann, search), fixture.exact(100, search.limit));
}

TEST(Ann, ALimitKeepsEveryKindFromPositionsBehindIt) {
  const Fixture fixture(64, 12000);
  for (const char* factory : {"Flat", "SQ8", "IVF32,Flat", "IVF32,SQ8", "HNSW16"}) {
    const Ann ann = fixture.build(factory);
    AnnSearch search = fixture.asked(50);
    search.probes = 32;
    search.ef = 6000;
    search.limit = 7001;
    const Positions found = fixture.find(ann, search);
    expect_lists(found, 50, 7001);
    EXPECT_GE(fixture.recall(found, 50, 7001), 0.9) << factory;
  }
}

// One list of 64 holds some 150 keys.
TEST(Ann, ListsTooShortAreFilledUpWithTheNewestPositions) {
  const Fixture fixture(64, 9000);
  const Ann ann = fixture.build("IVF64,Flat");
  AnnSearch search = fixture.asked(2000);
  search.probes = 1;
  const Positions found = fixture.find(ann, search);
  expect_lists(found, 2000, 9000);
  for (int h = 0; h < fixture.query_heads; ++h) EXPECT_EQ(found[static_cast<std::size_t>((h + 1) * 2000 - 1)], 8999);
  search.k = 9000;
  Positions all(9000);
  std::iota(all.begin(), all.end(), 0);
  const Positions everything = fixture.find(ann, search);
  EXPECT_EQ(Positions(everything.begin(), everything.begin() + 9000), all);
}

TEST(Ann, DecodingAddsAFewKeysAtATimeAndEndsWithWhatBuildingAtOnceGives) {
  const Fixture fixture(64, 20000);
  // The same lists: trained on the same keys.
  Ann grown({"IVF32,Flat", true}, 1, 2, 64);
  grown.sync_with_store(std::vector{fixture.first(18432)}, fixture.threads);
  Ann other = grown.fork();
  int calls = 0;
  for (; grown.tokens(0) < 20000; ++calls) grown.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
  EXPECT_EQ(calls, (20000 - 18432 + Ann::step_tokens - 1) / Ann::step_tokens);
  EXPECT_EQ(other.tokens(0), 18432) << "a fork sees nothing of it";
  other.sync_with_store(std::vector{fixture.first(19456)}, fixture.threads);
  EXPECT_EQ(other.tokens(0), 18432 + Ann::step_tokens);
  EXPECT_EQ(grown.tokens(0), 20000);

  AnnSearch search = fixture.asked(100);
  search.probes = 4;
  const Positions grown_found = fixture.find(grown, search);
  // Four lists of 32 look at about an eighth of the keys and find most: the newest are among the indexed ones.
  EXPECT_GE(fixture.recall(grown_found, 100, 20000), 0.6);
  search.probes = 32;
  EXPECT_EQ(fixture.find(grown, search), fixture.exact(100, 20000));
}

TEST(Ann, ForksAndTheirOriginAnswerTheSameWhileOneOfThemGrows) {
  const Fixture fixture(64, 20000);
  for (const char* factory : {"IVF32,Flat", "IVF32,SQ8", "HNSW16", "SQ8"}) {
    Ann ann({factory, true}, 1, 2, 64);
    ann.sync_with_store(std::vector{fixture.first(18432)}, fixture.threads);
    AnnSearch search = fixture.asked(50);
    search.limit = 18432;
    const Positions before = fixture.find(ann, search);
    Ann fork = ann.fork();
    while (fork.tokens(0) < 20000) fork.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
    EXPECT_EQ(fixture.find(ann, search), before) << factory;
    EXPECT_EQ(ann.tokens(0), 18432);
  }
}

TEST(Ann, AContextThatHasGrownFarIsIndexedAnew) {
  const Fixture fixture(64, 20000);
  Ann ann({"", true}, 1, 2, 64);
  ann.sync_with_store(std::vector{fixture.first(8192)}, fixture.threads);
  EXPECT_EQ(ann.factory(), default_ann_factory(8192));
  ann.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
  EXPECT_EQ(ann.factory(), default_ann_factory(20000));
  EXPECT_EQ(ann.tokens(0), 20000);
}

TEST(Ann, SearchesFromSeveralThreadsAnswerTheSame) {
  const Fixture fixture(64, 9000);
  for (const char* factory : {"IVF32,SQ8", "HNSW16"}) {
    const Ann ann = fixture.build(factory);
    const AnnSearch search = fixture.asked(40);
    const Positions expected = fixture.find(ann, search);
    std::vector<Positions> found(4);
    std::vector<std::thread> threads;
    for (Positions& mine : found) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) mine = fixture.find(ann, search);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Positions& mine : found) EXPECT_EQ(mine, expected) << factory;
  }
}

// Queries that ask along one direction only, in which lists differ little by their centroids but keys within them do.
TEST(Ann, ListsRankedByTheirSpreadTooFindMoreInAsManyKeys) {
  const Fixture fixture(64, 20000);
  const Ann plain = fixture.build("IVF128,Flat", false);
  Ann aware({"IVF128,Flat", true}, 1, 2, 64);
  std::mt19937 engine(5);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 64; ++i) {
    std::vector<float> queries(fixture.query.size());
    for (float& x : queries) x = normal(engine);
    aware.see_queries(0, queries.data(), 1, fixture.query_heads);
  }
  aware.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
  AnnSearch search = fixture.asked(64);
  search.probes = 16;
  EXPECT_GT(fixture.recall(fixture.find(aware, search), 64, 20000),
            fixture.recall(fixture.find(plain, search), 64, 20000));
}

TEST(Ann, ProgressEndsWithEverythingAndThrowingStops) {
  const Fixture fixture(64, 20000);
  Ann ann({"IVF32,Flat", true}, 1, 2, 64);
  struct Stop {};
  EXPECT_THROW(ann.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads,
                                   [](std::int64_t done, std::int64_t) {
                                     if (done > 0) throw Stop();
                                   }),
               Stop);
  EXPECT_LT(ann.tokens(0), 20000);
  std::int64_t last = -1;
  ann.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads, [&](std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 20000);
    last = done;
  });
  EXPECT_EQ(last, 20000);
}

TEST(Ann, LayersThatItHasNotGotAreAProgrammersMistake) {
  const std::vector<float> q(4 * 64);
  Ann ann({"IVF32,Flat", true}, 1, 2, 64);
  for (const int layer : {-1, 1, 9}) {
    EXPECT_THROW(ann.tokens(layer), std::logic_error);
    EXPECT_THROW(ann.see_queries(layer, q.data(), 1, 4), std::logic_error);
  }
  EXPECT_THROW(ann.see_queries(0, q.data(), 1, 1), std::logic_error);
  const Ann taken = std::move(ann);
  EXPECT_EQ(taken.tokens(0), 0);
  EXPECT_THROW(ann.tokens(0), std::logic_error);  // NOLINT: it was moved from
}

TEST(Ann, FactoryStringsThatDoNotFitAreRefusedInOneLine) {
  const auto make = [](const char* factory) { return [=] { Ann({factory, true}, 1, 2, 64); }; };
  EXPECT_TRUE(refuses(make("IFV64,Flat"), {"--attn ann:IFV64,Flat", "IVFn or HNSWm"}));
  EXPECT_TRUE(refuses(make("PQ7"), {"--attn ann:PQ7", "64", "multiple"}));
  EXPECT_TRUE(refuses(make("IVF16,PQ7"), {"--attn ann:IVF16,PQ7", "64", "multiple"}));
  EXPECT_TRUE(refuses(make("PCA32,Flat"), {"PCA32,Flat", "SQfp16"}));
  EXPECT_TRUE(refuses(make("L2norm,SQ8"), {"L2norm,SQ8", "linear"}));
  EXPECT_TRUE(refuses(make("LSH"), {"--attn ann:LSH"}));
  EXPECT_TRUE(refuses(make("IVF64_HNSW32,Flat"), {"IVF64_HNSW32,Flat", "centroids"}));
  EXPECT_TRUE(refuses(make("IVF0,Flat"), {"IVF0,Flat", "one list"}));
  for (const char* const none : {"PQ0", "IVF4,PQ0", "HNSW8,PQ0", "PQ00x8", "OPQ0,PQ4"}) {
    EXPECT_TRUE(refuses(make(none), {none, "one code"})) << none;
  }
  for (const char* const none : {"PQ8x0", "IVF4,PQ8x0", "PQ4x12"}) {
    EXPECT_TRUE(refuses(make(none), {none, "1 to 8 bits"})) << none;
  }
  for (const char* const other : {"RR0,SQ8", "RR65536,SQ8", "RR32,SQ8", "ZnLattice0x10_4"}) {
    EXPECT_TRUE(refuses(make(other), {other, "not one that hayloft has"})) << other;
  }
  for (const char* const wide : {"OPQ8_0,PQ8", "OPQ1_1048576,SQ8"}) {
    EXPECT_TRUE(refuses(make(wide), {wide, "1 to 256"})) << wide;
  }
  EXPECT_TRUE(refuses(make("PCA0,SQ8"), {"PCA0,SQ8", "1 to 64", "not to 0"}));
  EXPECT_TRUE(refuses(make("PCA99,SQ8"), {"PCA99,SQ8", "1 to 64", "not to 99"}));
  EXPECT_TRUE(refuses(make("PCAW32,SQ8"), {"PCAW32,SQ8", "whitening"}));
  EXPECT_TRUE(refuses(make("OPQ3,PQ4"), {"OPQ3,PQ4", "64", "divisor"}));
  for (const char* const few : {"HNSW0", "HNSW1"}) EXPECT_TRUE(refuses(make(few), {few, "two links"}));

  const Fixture fixture(64, 9000);
  EXPECT_TRUE(refuses([&] { fixture.build("IVF16384,Flat"); }, {"IVF16384,Flat", "16384", "9000", "fewer lists"}));
}

TEST(Ann, SearchesOutOfRangeAreRefused) {
  const Fixture fixture(64, 9000);
  const Ann ann = fixture.build("Flat");
  Positions found(100000);
  const auto search = [&](AnnSearch asked) {
    return
        [&, asked] { ann.search(0, fixture.layer.view(), fixture.query.data(), asked, fixture.threads, found.data()); };
  };
  EXPECT_TRUE(refuses(search({.query_heads = 3, .limit = 9000, .k = 1}), {"3 query heads"}));
  EXPECT_TRUE(refuses(search({.query_heads = 4, .limit = 9001, .k = 1}), {"9001"}));
  EXPECT_TRUE(refuses(search({.query_heads = 4, .limit = 9000, .k = 9001}), {"9001"}));
}

TEST(Ann, TheDefaultHasAPowerOfTwoOfListsNearFourRootsOfTheLength) {
  EXPECT_EQ(default_ann_factory(65536), "IVF1024,Flat");
  EXPECT_EQ(default_ann_factory(262144), "IVF2048,Flat");
  EXPECT_EQ(default_ann_factory(1048576), "IVF4096,Flat");
}

// The estimate leaves out what does not grow with the context, and the rounding of lists and levels.
TEST(Ann, AnIndexTakesAboutTheMemoryThatWasForetold) {
  const Fixture fixture(64, 9000);
  for (const char* factory : {"IVF64,Flat", "IVF64,SQ8", "HNSW16", "HNSW16,SQ8", "SQ8"}) {
    const Ann ann = fixture.build(factory);
    const double foretold = 2.0 * static_cast<double>(ann_bytes({factory, true}, 9000, 64));
    EXPECT_NEAR(static_cast<double>(ann.bytes()) / foretold, 1, 0.1) << factory;
  }
}

}  // namespace
}  // namespace hayloft::index
