#include <gtest/gtest.h>

#include "tests/index/ann/ann_fixture.h"

// Kinds with codes: training them takes seconds.
namespace hayloft::index {
namespace {

using testing::expect_lists;
using testing::Fixture;
using testing::Positions;

// Codes rank by what they kept. Eight bits a component err by half a step, 1/510 of the range of some 10 standard
// deviations, at random over d components: 0.006 of the products' own standard deviation. The 64th of 9,000 products is
// surrounded by about 64 * 2.5 of them per standard deviation, so less than one of 64 changes places; ranked again
// among twice as many, none is lost but by chance. PQ of 4 components in 8 bits keeps less, hence the ranking.
TEST(Ann, CodesFindMostOfItAndRankingByRowsFindsTheRest) {
  const Fixture fixture(64, 9000);
  struct Case {
    const char* factory;
    int rerank;
    double recall;
  };
  for (const bool aware : {false, true}) {
    for (const auto& [factory, rerank, recall] :
         {Case{"SQ8", 0, 0.97}, Case{"SQ8", 2, 1}, Case{"SQfp16", 2, 1}, Case{"PQ16", 16, 0.97},
          Case{"IVF32,SQ8", 2, 0.99}, Case{"IVF32,PQ16", 16, 0.97}, Case{"OPQ16,PQ16", 16, 0.97},
          Case{"PCA32,SQ8", 32, 0.9}, Case{"HNSW16,SQ8", 2, 0.8}, Case{"HNSW16_PQ16", 16, 0.7}}) {
      const Ann ann = fixture.build(factory, aware);
      AnnSearch search = fixture.asked(64);
      search.probes = 32;
      search.ef = 4500;
      search.rerank = rerank;
      const Positions found = fixture.find(ann, search);
      expect_lists(found, 64, search.limit);
      EXPECT_GE(fixture.recall(found, 64, search.limit), recall) << factory << (aware ? " aware" : "");
    }
  }
}

}  // namespace
}  // namespace hayloft::index
