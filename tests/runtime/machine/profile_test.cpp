#include "runtime/machine/profile.h"
#include "gpu/make_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/machine/numa_bandwidth.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::plan {
namespace {

MachineProfile some_profile() {
  MachineProfile profile;
  profile.machine = "a machine";
  profile.device = "cpu";
  profile.threads = 2;
  profile.footprint_bytes = 1 << 30;
  profile.near_read = 20.5;
  profile.near_reads = {{0, 1, 12.5}, {0, 2, 20.5}};
  profile.weight_stream = 10;
  profile.matmul = 100;
  profile.layer_overhead_us = 12;
  profile.attention = {{64, 1, {8, 5, 3, 4}, 6, 2, 12, 30, 15, 2, 40, 7, 0.5, 0.25},
                       {64, 4, {4, 3, 2, 3}, 3, 1, 6, 15, 5, 1, 50, 8, 2, 1},
                       {128, 4, {5, 4, 3, 5}, 4, 3, 9, 20, 10, 2, 60, 9, 3, 2}};
  return profile;
}

class ProfileFile : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "profile.json"; }
  void write(const std::string& text) const { std::ofstream(path(), std::ios::binary) << text; }
  test::TemporaryFolder folder_;
};

TEST(MachineRatesOf, AProfileAreItsOwnForTheStoreOfAllLayersAndBuiltInForAnotherDevice) {
  MachineProfile profile = some_profile();
  profile.small_footprint_bytes = 1 << 20;
  profile.attention_small = profile.attention;
  for (AttentionRates& rates : profile.attention_small) rates.dense *= 4;
  const auto rates = machine_rates(profile, "cpu", 30, "a file");
  EXPECT_EQ(rates->source, "a file (threads: 2)");
  for (const std::uint64_t bytes : {1u << 10, 1u << 18, 1u << 22}) {
    EXPECT_EQ(rates->rates(64, 4, bytes).dense, profile.rates(64, 4, 30 * std::uint64_t{bytes}).dense);
  }
  EXPECT_GT(rates->integer_rows, 1);
  EXPECT_LT(rates->margin, built_in_rates("cpu")->margin);
  EXPECT_EQ(machine_rates(profile, "cuda", 30)->source, built_in_rates("cuda")->source);
  EXPECT_EQ(machine_rates(std::nullopt, "cpu", 30)->source, built_in_rates("cpu")->source);
  EXPECT_EQ(built_in_rates("cuda")->integer_rows, 0) << "a link moves bytes";
}

TEST_F(ProfileFile, ComesBackAsItWasWritten) {
  MachineProfile profile = some_profile();
  write_profile(profile, path());
  EXPECT_EQ(profile_json(read_profile(path())), profile_json(profile));
  EXPECT_FALSE(read_profile(path()).link_to_device);
  profile.link_to_device = 25;
  write_profile(profile, path());
  EXPECT_EQ(read_profile(path()).link_to_device, 25);
}

ProfileOrigin some_origin() {
  return {"attic", "A Processor", "2026-01-02T03:04:05Z", "0.4.0", 10, std::uint64_t{64} << 30, 0};
}

TEST_F(ProfileFile, HasNullForWhatWasNotMeasured) {
  MachineProfile profile = some_profile();
  profile.weight_stream = 0;
  profile.attention.front().dense = 0;
  const nlohmann::json json = nlohmann::json::parse(profile_json(profile));
  EXPECT_TRUE(json["weight_stream_GBps"].is_null());
  EXPECT_TRUE(json["attention"][0]["dense_GBps"].is_null());
  EXPECT_EQ(json["matmul_GFLOPps"], profile.matmul);
}

TEST_F(ProfileFile, KeepsWhereAndWhenItWasMeasured) {
  MachineProfile profile = some_profile();
  EXPECT_FALSE(profile.origin.known());
  profile.origin = some_origin();
  write_profile(profile, path());
  const ProfileOrigin back = read_profile(path()).origin;
  EXPECT_EQ(back.host, "attic");
  EXPECT_EQ(back.processor, "A Processor");
  EXPECT_EQ(back.date, "2026-01-02T03:04:05Z");
  EXPECT_EQ(back.version, "0.4.0");
  EXPECT_EQ(back.seconds, 10);
  EXPECT_EQ(back.memory_bytes, std::uint64_t{64} << 30);
  nlohmann::json damaged = nlohmann::json::parse(profile_json(profile));
  damaged.erase("date");
  write(damaged.dump());
  EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {path(), "date"}));
}

TEST(ProfileDoubts, AreWhatMakesItsTimesSayLessHere) {
  const ProfileOrigin here = some_origin();
  EXPECT_EQ(doubt(here, here).what, "");
  const auto changed = [&](const auto& change) {
    ProfileOrigin profile = some_origin();
    change(profile);
    return doubt(profile, here);
  };
  const ProfileDoubt other = changed([](ProfileOrigin& p) { p.processor = "Another", p.host = "cellar"; });
  EXPECT_TRUE(other.other_machine);
  EXPECT_EQ(other.what, "is of another machine, cellar (Another)");
  const ProfileDoubt sibling = changed([](ProfileOrigin& p) { p.host = "cellar"; });
  EXPECT_FALSE(sibling.other_machine);
  EXPECT_EQ(sibling.what, "is of another machine with such a processor, cellar");
  EXPECT_EQ(changed([](ProfileOrigin& p) { p.version = "0.3.0"; }).what, "was measured by hayloft 0.3.0");
  EXPECT_EQ(changed([](ProfileOrigin& p) { p.date = "2025-07-07T00:00:00Z"; }).what, "");
  EXPECT_EQ(changed([](ProfileOrigin& p) { p.date = "2025-07-01T00:00:00Z"; }).what, "is 185 days old");
  EXPECT_EQ(changed([](ProfileOrigin& p) { p.date = "soon"; }).what, "does not say when it was measured");
  EXPECT_EQ(doubt({}, here).what, "does not say which machine it is of");
  EXPECT_FALSE(doubt({}, here).other_machine);
}

TEST_F(ProfileFile, MakesTheFolderItGoesTo) {
  const std::filesystem::path deep = std::filesystem::path(folder_ / "a") / "b" / "profile.json";
  write_profile(some_profile(), deep);
  EXPECT_EQ(read_profile(deep).threads, 2);
}

TEST_F(ProfileFile, EveryMissingOrWrongFieldIsNamed) {
  const nlohmann::json whole = nlohmann::json::parse(profile_json(some_profile()));
  for (const auto& [name, value] : whole.items()) {
    nlohmann::json damaged = whole;
    const bool link = name.rfind("link", 0) == 0;
    if (!link) {  // which may be absent only as null
      damaged.erase(name);
      write(damaged.dump());
      EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {path(), name}));
    }
    damaged[name] = nlohmann::json::object();
    write(damaged.dump());
    EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {path(), name}));
    if (!value.is_number()) continue;
    damaged[name] = -1;
    write(damaged.dump());
    EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {path(), name, "-1"}));
  }
  for (const char* name : {"node", "threads", "GBps"}) {
    nlohmann::json damaged = whole;
    damaged["near_reads"][1][name] = -1;
    write(damaged.dump());
    EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {path(), "near_reads[1]", name}));
  }
  for (const auto& [name, value] : whole["attention"][1].items()) {
    nlohmann::json damaged = whole;
    damaged["attention"][1][name] = 0;
    write(damaged.dump());
    EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {path(), "attention[1]", name}));
  }
}

TEST_F(ProfileFile, OtherSchemasAndEmptyListsAreRefused) {
  nlohmann::json json = nlohmann::json::parse(profile_json(some_profile()));
  json["attention"] = nlohmann::json::array();
  write(json.dump());
  EXPECT_TRUE(test::refuses([&] { read_profile(path()); },
                            {path() + ": attention is an empty list", "; measure again with hayloft link"}));
  json["schema"] = "hayloft.profile/2";
  write(json.dump());
  EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {"schema", "hayloft.profile/2", "hayloft.profile/1"}));
  write("{");
  EXPECT_TRUE(test::refuses([&] { read_profile(path()); }, {path(), "JSON", "; measure again with hayloft link"}));
}

TEST_F(ProfileFile, OfBeforeColumnsHadALinkEachIsRefusedWithWhatToDo) {
  nlohmann::json json = nlohmann::json::parse(profile_json(some_profile()));
  json.erase("link_columns_int4_copy_GBps");
  write(json.dump());
  EXPECT_TRUE(
      test::refuses([&] { read_profile(path()); },
                    {path(), "the field link_columns_int4_copy_GBps is missing; measure again with hayloft link"}));
}

TEST_F(ProfileFile, KeepsHowColumnsOfEveryFormatCome) {
  MachineProfile profile = some_profile();
  profile.link_columns_f16 = {20, 50, 40};
  profile.link_columns_int4 = {20, 12, 30};
  write_profile(profile, path());
  const gpu::LinkChoice best = read_profile(path()).best_link();
  EXPECT_EQ(best.f16, gpu::Link::copy);
  EXPECT_EQ(best.int8, gpu::Link::sm);
  EXPECT_EQ(best.int4, gpu::Link::both);
}

TEST(Rates, AreThoseMeasuredWhereTheyWere) {
  const AttentionRates rates = some_profile().rates(64, 4);
  EXPECT_EQ(rates.dense, 6);
  EXPECT_EQ(rates.sparq_tail, 5);
}

TEST(Rates, BetweenGroupsTheTimePerByteIsInterpolated) {
  // A third of the way from 1 to 4: 2/3 of 1/12 and 1/3 of 1/6 second per GB.
  EXPECT_DOUBLE_EQ(some_profile().rates(64, 2).dense, 1 / (2.0 / 3 / 12 + 1.0 / 3 / 6));
}

TEST(Rates, BetweenGroupsTimesAreInterpolatedAsTheyAre) {
  EXPECT_DOUBLE_EQ(some_profile().rates(64, 2).column_select_us, 2.0 / 3 * 0.5 + 1.0 / 3 * 2);
  EXPECT_DOUBLE_EQ(some_profile().rates(64, 8).exact_select_us, 1) << "a list more is counted as one";
}

TEST(Rates, PastTheLargestGroupEveryQueryHeadCostsTheSame) {
  EXPECT_DOUBLE_EQ(some_profile().rates(64, 8).dense, 3);
}

TEST(Rates, OfOtherHeadDimensionsAreThoseOfTheNearest) {
  EXPECT_EQ(some_profile().rates(256, 4).dense, 9);
  EXPECT_EQ(some_profile().rates(80, 4).dense, 6);
}

TEST(MeasuredProfile, IsFiniteCompleteAndWithinTheFootprint) {
  const offload::Topology topology;
  const offload::Threads threads(2);
  const auto backend = gpu::make_cpu_backend(threads);
  offload::Arena arena(topology, {.budget_bytes = 128 << 20});
  int steps = 0;
  // Each measurement ends after its three runs.
  const MachineProfile profile = measure_profile(*backend, arena, topology, {.footprint_bytes = 64 << 20, .seconds = 0},
                                                 [&](const std::string&) { ++steps; });
  EXPECT_GT(steps, 0);
  EXPECT_EQ(profile.device, "cpu");
  EXPECT_EQ(profile.threads, 2);
  EXPECT_FALSE(profile.link_to_device);
  EXPECT_EQ(profile.footprint_bytes, std::uint64_t{64} << 20);
  EXPECT_EQ(arena.peak_bytes(), profile.footprint_bytes);
  EXPECT_EQ(arena.used_bytes(), 0u);
  for (const AttentionRates& rates : profile.attention) {
    for (const double rate :
         {rates.exact_scan, rates.row_gather, rates.dense, rates.tail, rates.sparq_tail, rates.row_scan, rates.causal,
          rates.ann_search, rates.column_select_us, rates.exact_select_us}) {
      EXPECT_TRUE(std::isfinite(rate) && rate > 0) << rates.head_dim << " " << rates.group;
    }
    for (const double rate : rates.column_scans) EXPECT_TRUE(std::isfinite(rate) && rate > 0);
  }
}

TEST(MeasuredProfile, ReadsEveryNodeByOneTwoFourAndAllThreads) {
  EXPECT_EQ(thread_counts(1), (std::vector<int>{1}));
  EXPECT_EQ(thread_counts(4), (std::vector<int>{1, 2, 4}));
  EXPECT_EQ(thread_counts(6), (std::vector<int>{1, 2, 4, 6}));
  const offload::Topology topology;
  const offload::Threads threads(3);
  const std::vector<std::byte> memory(std::size_t{4} << 20);
  MachineProfile profile;
  int turns = 0;
  measure_numa_bandwidth(profile, topology, threads, memory, [&](const std::function<void()>& turn) {
    turn();
    return ++turns * 1e-3;
  });
  std::vector<std::pair<int, int>> measured, wanted;
  for (const NearRead& read : profile.near_reads) measured.emplace_back(read.node, read.threads);
  for (const offload::NumaNode& node : topology.nodes()) {
    for (const int count : {1, 2, 3}) {
      if (node.memory_bytes > 0) wanted.emplace_back(node.os_index, count);
    }
  }
  if (!profile.skipped.empty()) GTEST_SKIP() << profile.skipped.front();
  EXPECT_EQ(measured, wanted);
  if (topology.nodes().size() > 1) return;
  EXPECT_DOUBLE_EQ(profile.near_reads[0].rate, 4.194304);
  EXPECT_DOUBLE_EQ(profile.near_reads[2].rate, 4.194304 / 3);
  EXPECT_EQ(profile.near_read, profile.near_reads[2].rate) << "all threads, though fewer were faster";
}

TEST(MeasuredProfile, SaysWhenTheMemoryIsNotToBeHad) {
  const offload::Topology topology;
  const offload::Threads threads(1);
  const auto backend = gpu::make_cpu_backend(threads);
  offload::Arena arena(topology, {.budget_bytes = 16 << 20});
  EXPECT_TRUE(test::refuses([&] { measure_profile(*backend, arena, topology); }, {"--host-memory"}));
}

TEST(ProfileOfTwoFootprints, IsInterpolatedByTheSizeOfTheStore) {
  MachineProfile profile = some_profile();
  profile.footprint_bytes = std::uint64_t{1} << 30;
  profile.small_footprint_bytes = std::uint64_t{1} << 26;
  profile.attention_small = profile.attention;
  for (AttentionRates& rates : profile.attention_small) rates.dense *= 4;
  EXPECT_DOUBLE_EQ(profile.rates(64, 4, 1000).dense, 24);
  EXPECT_DOUBLE_EQ(profile.rates(64, 4, std::uint64_t{1} << 26).dense, 24);
  EXPECT_DOUBLE_EQ(profile.rates(64, 4, std::uint64_t{1} << 27).dense, 1 / (0.5 / 24 + 0.5 / 6)) << "half way";
  EXPECT_DOUBLE_EQ(profile.rates(64, 4, std::uint64_t{1} << 28).dense, 6) << "from a quarter on";
  EXPECT_DOUBLE_EQ(profile.rates(64, 4, std::uint64_t{1} << 40).dense, 6);
  EXPECT_DOUBLE_EQ(profile.rates(64, 4, std::uint64_t{1} << 28).tail, 15) << "the same over both";

  const test::TemporaryFolder folder;
  write_profile(profile, folder / "two.json");
  EXPECT_EQ(profile_json(read_profile(folder / "two.json")), profile_json(profile));
  EXPECT_EQ(some_profile().rates(64, 4, 1000).dense, 6) << "a profile of one footprint knows no other";
}

}  // namespace
}  // namespace hayloft::runtime::plan
