#include "runtime/machine/measure_network.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/cluster/local_ranks.h"
#include "runtime/cluster/merge.h"
#include "runtime/plan/plan_network.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace hayloft::runtime::plan {
namespace {

// A rank whose bytes arrive changed in the largest messages.
class Garbling : public cluster::Communicator {
 public:
  explicit Garbling(cluster::Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int ranks() const override { return inner_.ranks(); }

 protected:
  void gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    inner_.all_gather(cluster::Traffic::start, own, all);
    if (own.size() > 4096) all[all.size() - 3] ^= std::byte{1};
  }
  void cast(std::span<std::byte> data) override { inner_.broadcast(cluster::Traffic::start, data); }

 private:
  cluster::Communicator& inner_;
};

TEST(MeasureNetwork, RanksMeasureTheMessagesOfAttentionAndAgree) {
  for (const int count : {2, 3}) {
    std::vector<NetworkReport> reports(static_cast<std::size_t>(count));
    cluster::run_local_ranks(count, [&](cluster::Communicator& ranks) {
      reports[static_cast<std::size_t>(ranks.rank())] = measure_network(ranks, {.seconds = 0.01});
    });
    const NetworkReport& report = reports.front();
    EXPECT_EQ(report.ranks, count);
    EXPECT_TRUE(report.on_one_machine());
    EXPECT_TRUE(report.share_machines());
    bool attention = false;
    for (const NetworkFigure& figure : report.figures) {
      EXPECT_GE(figure.turns, 5) << figure.what;
      EXPECT_LE(figure.fastest_us, figure.median_us);
      EXPECT_LE(figure.median_us, figure.slowest_us);
      EXPECT_EQ(figure.arrived_bytes, figure.sent_bytes * (figure.broadcast ? 1 : static_cast<unsigned>(count - 1)));
      attention = attention || figure.sent_bytes == cluster::AttentionParts::bytes(32, 128);
    }
    EXPECT_TRUE(attention);
    for (const NetworkReport& other : reports) EXPECT_EQ(network_csv(other), network_csv(report));
  }
}

TEST(MeasureNetwork, BytesThatArriveChangedAreAnError) {
  EXPECT_TRUE(test::refuses(
      [] {
        cluster::run_local_ranks(2, [](cluster::Communicator& ranks) {
          Garbling garbling(ranks);
          measure_network(garbling, {.seconds = 0.01});
        });
      },
      {"arrives changed", "dense"}));
}

// Made up: a latency of 40 us in each of two rounds, and 1 Gbit/s.
NetworkReport made_up() {
  return {3,
          {"loft1", "loft2", "loft3"},
          "2026-11-23T09:30:00Z",
          "1.0",
          {{"token", true, 4, 4, 9, 30, 20, 40},
           {"latency", false, 4, 8, 9, 80, 80, 81},
           {"rate", false, 1000000, 2000000, 9, 16000, 16000, 16000}}};
}

TEST(MeasureNetwork, APlanReadsTheLatencyAndTheRateThatWereMeasured) {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::string& text) {
    std::ofstream(folder.path() / "network.json") << text;
    return (folder.path() / "network.json").string();
  };
  NetworkReport report = made_up();
  Network network = parse_network(write(network_json(report)));
  EXPECT_DOUBLE_EQ(network.latency_us, 40);
  EXPECT_DOUBLE_EQ(network.gigabits_per_second, 1);
  EXPECT_FALSE(network.within_machines);
  // Predicted is what was measured.
  EXPECT_DOUBLE_EQ(network_ms({.messages = 1, .gathered = 1, .bytes = 1000000}, network, 3), 16 + 0.08);

  report.hosts[2] = "loft1";
  EXPECT_FALSE(report.on_one_machine());
  network = parse_network(write(network_json(report)));
  EXPECT_TRUE(network.within_machines);

  for (const char* text : {"{}", "[]", "no", R"({"schema":"hayloft.network/1"})",
                           R"({"schema":"hayloft.network/1","Gbitps":-1,"latency_us":1})"}) {
    const std::string path = write(text);
    EXPECT_TRUE(test::refuses([&] { parse_network(path); }, {"network.json"})) << text;
  }
}

TEST(MeasureNetwork, FiguresThatVaryAreMarked) {
  NetworkReport report = made_up();
  EXPECT_NE(network_table(report).find(" 30* |"), std::string::npos) << network_table(report);
  EXPECT_NE(network_table(report).find(" 80 |"), std::string::npos);
  EXPECT_NE(network_table(report).find("--network 1,40"), std::string::npos);
  const auto json = nlohmann::json::parse(network_json(report));
  EXPECT_EQ(json["figures"][2]["received_Gbitps"], 1.0);
}

}  // namespace
}  // namespace hayloft::runtime::plan
