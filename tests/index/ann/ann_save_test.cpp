#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <random>

#include "tests/index/ann/ann_fixture.h"
#include "tests/support/refusal.h"

// Indices saved and taken back.
namespace hayloft::index {
namespace {

using test::message_of;
using test::refuses;
using testing::Fixture;
using testing::Positions;

AnnSearch few(const Fixture& fixture, int k) {
  AnnSearch search = fixture.asked(k);
  search.probes = 3;
  return search;
}

constexpr const char* kinds[] = {"Flat", "SQ8", "IVF32,Flat", "IVF32,SQ8", "PCA32,SQ4", "HNSW16", "HNSW16,SQ8"};

// Returns the index of the fixture with 9,000 tokens, built once per kind.
const std::vector<std::byte>& saved_index(const Fixture& fixture, const char* factory) {
  static std::map<std::string, std::vector<std::byte>> saved;
  std::vector<std::byte>& bytes = saved[factory];
  if (bytes.empty()) bytes = fixture.build(factory).save();
  return bytes;
}

TEST(SavedAnn, AnswersAndGrowsAsTheOneThatWasSaved) {
  const Fixture fixture(64, 10000);
  for (const char* factory : kinds) {
    for (const bool aware : {false, true}) {
      if (!aware && std::string(factory) != "IVF32,SQ8") continue;
      Ann ann({factory, aware}, 1, 2, 64);
      ann.see_queries(0, fixture.query.data(), 1, fixture.query_heads);
      ann.sync_with_store(std::vector{fixture.first(9216)}, fixture.threads);
      Ann taken({factory, aware}, 1, 2, 64);
      taken.load(ann.save());
      EXPECT_EQ(taken.tokens(0), 9216);
      EXPECT_EQ(taken.factory(), ann.factory());
      EXPECT_EQ(taken.bytes(), ann.bytes()) << factory;
      EXPECT_EQ(taken.save(), ann.save()) << factory;
      EXPECT_EQ(fixture.find(taken, few(fixture, 40)), fixture.find(ann, few(fixture, 40))) << factory;
      taken.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
      EXPECT_EQ(taken.tokens(0), 9216 + Ann::step_tokens);
      // Adding to lists and codes has nothing random in it; to a graph, the levels of keys.
      if (std::string(factory).find("HNSW") != std::string::npos) continue;
      ann.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
      EXPECT_EQ(fixture.find(taken, few(fixture, 40)), fixture.find(ann, few(fixture, 40))) << factory;
    }
  }
}

TEST(SavedAnn, NothingBuiltYetIsSavedToo) {
  const Fixture fixture(64, 9000);
  Ann ann({"", true}, 1, 2, 64);
  ann.see_queries(0, fixture.query.data(), 1, fixture.query_heads);
  Ann taken({"", true}, 1, 2, 64);
  taken.load(ann.save());
  EXPECT_EQ(taken.save(), ann.save());
  taken.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
  ann.sync_with_store(std::vector{fixture.layer.view()}, fixture.threads);
  EXPECT_EQ(taken.save(), ann.save());
}

TEST(SavedAnn, AnotherKindOrModelOrALongerContextIsRefused) {
  const Fixture fixture(64, 9000);
  const std::vector<std::byte> saved = fixture.build("IVF32,Flat").save();
  const auto load = [&](AnnOptions options, int layers, int heads, int d) {
    return [=] { Ann(options, layers, heads, d).load(saved); };
  };
  EXPECT_TRUE(refuses(load({"IVF64,Flat", true}, 1, 2, 64), {"ann:IVF32,Flat"}));
  EXPECT_TRUE(refuses(load({"IVF32,Flat", false}, 1, 2, 64), {"ann:IVF32,Flat"}));
  EXPECT_TRUE(refuses(load({"IVF32,Flat", true}, 2, 2, 64), {"another model"}));
  EXPECT_TRUE(refuses(load({"IVF32,Flat", true}, 1, 4, 64), {"another model"}));
  EXPECT_TRUE(refuses(load({"IVF32,Flat", true}, 1, 2, 128), {"another model"}));
  Ann ann({"IVF32,Flat", true}, 1, 2, 64);
  ann.load(saved);
  EXPECT_TRUE(
      refuses([&] { ann.sync_with_store(std::vector{fixture.first(8192)}, fixture.threads); }, {"9000", "8192"}));
}

TEST(SavedAnn, BytesThatEndEarlyOrGoOnAreRefused) {
  const Fixture fixture(64, 9000);
  for (const char* factory : kinds) {
    std::vector<std::byte> saved = saved_index(fixture, factory);
    Ann ann({factory, true}, 1, 2, 64);
    std::mt19937 random(7);
    for (int i = 0; i < 20; ++i) {
      const std::span<const std::byte> part(saved.data(), random() % saved.size());
      EXPECT_NE(message_of([&] { ann.load(part); }), "(no Error)") << factory << " " << part.size();
    }
    saved.push_back({});
    EXPECT_TRUE(refuses([&] { ann.load(saved); }, {"behind it"}));
    EXPECT_EQ(ann.tokens(0), 0) << "what fails to load leaves the index as it was";
  }
}

// Whatever the bytes say: either an Error, or an index that is searched without reading anything else.
TEST(SavedAnn, BytesChangedAnywhereAreRefusedOrHarmless) {
  const Fixture fixture(64, 9000);
  for (const char* factory : kinds) {
    const std::vector<std::byte>& saved = saved_index(fixture, factory);
    std::mt19937 random(8);
    for (int i = 0; i < 40; ++i) {
      std::vector<std::byte> bytes = saved;
      const std::int32_t value =
          std::array{-1, 0x7fffffff, static_cast<std::int32_t>(random()), 0x7fc00000}[random() % 4];
      std::memcpy(bytes.data() + random() % (bytes.size() - sizeof value), &value, sizeof value);
      Ann ann({factory, true}, 1, 2, 64);
      try {
        ann.load(bytes);
        if (ann.tokens(0) > 9000) continue;
        const Positions found = fixture.find(ann, few(fixture, 40));
        testing::expect_lists(found, 40, 9000);
      } catch (const Error&) {
      }
    }
  }
}

}  // namespace
}  // namespace hayloft::index
