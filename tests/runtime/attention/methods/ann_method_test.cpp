#include "tests/support/method_fixture.h"

// The method that attends to what an index finds.
namespace hayloft::testing {
namespace {

using runtime::Kind;
using runtime::Place;

class AnnMethodTest : public MethodTest {
 protected:
  AnnMethodTest() { make({.kv_heads = 2, .head_dim = 32, .stored = 9216, .tail = 45, .seed = 3}); }
};

TEST_F(AnnMethodTest, AttendsAsTopKDoesWhenItsIndexLooksEverywhere) {
  const Output topk = attend("topk:k=40");
  for (const char* method : {"ann:Flat:k=40", "ann:IVF64,Flat:nprobe=64:k=40", "ann:SQfp16:rerank=4:k=40"}) {
    const Output ann = attend(method);
    EXPECT_EQ(ann.trace.lists, 4);
    EXPECT_EQ(ann.trace.positions, topk.trace.positions) << method;
    EXPECT_EQ(ann.y, topk.y) << method;
    expect_consistent(ann, false);
  }
}

// The better half of the lists holds nine tenths of the best even where keys are random, without structure.
TEST_F(AnnMethodTest, TheDefaultIndexFindsMostOfIt) {
  const Output topk = attend("topk:k=40");
  const Output ann = attend("ann:nprobe=256:k=40");  // of 512 lists
  int common = 0;
  for (std::size_t i = 0; i < ann.trace.positions.size(); ++i) {
    const auto list = topk.trace.positions.begin() + static_cast<std::ptrdiff_t>(i / 40 * 40);
    common += std::binary_search(list, list + 40, ann.trace.positions[i]);
  }
  EXPECT_GE(common, 4 * 40 * 9 / 10);
}

TEST_F(AnnMethodTest, CountsTheKeysItComparedAndTheIndexItRead) {
  runtime::Counters flat = attend("ann:Flat:k=40").counters;
  const std::uint64_t d = 32;
  EXPECT_EQ(flat.positions_scored, 4u * 9216) << "every query head on its own";
  EXPECT_EQ(flat.at(Place::near, Kind::rows), 4u * 9216 * d * 2);
  EXPECT_EQ(flat.at(Place::near, Kind::index), 0u);
  EXPECT_EQ(flat.at(Place::link, Kind::rows), 4u * 40 * 4 * d);
  EXPECT_EQ(flat.at(Place::device, Kind::rows), 2u * 45 * 4 * d);

  runtime::Counters some = attend("ann:IVF64,Flat:nprobe=8:k=40").counters;
  EXPECT_LT(some.positions_scored, 4u * 9216 / 3);
  // Per query head 64 centroids in f32 and what lists spread over 8 directions; 4 bytes a key that is compared.
  EXPECT_EQ(some.at(Place::near, Kind::index), 4u * 64 * (4 * d + 36 * 4) + some.positions_scored * 4);
  EXPECT_EQ(some.at(Place::near, Kind::rows), some.positions_scored * d * 2);

  runtime::Counters codes = attend("ann:SQ8:k=40").counters;
  EXPECT_EQ(codes.at(Place::near, Kind::index), 4u * 9216 * d);
  EXPECT_EQ(codes.at(Place::near, Kind::rows), 0u);
}

TEST_F(AnnMethodTest, SelectsPerQueryHeadOnly) {
  EXPECT_THROW(attend("ann:select=kv-head"), Error);
}

}  // namespace
}  // namespace hayloft::testing
