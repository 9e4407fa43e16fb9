#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text/format.h"
#include "offload/text/json_text.h"
#include "offload/text/text_table.h"
#include "runtime/machine/measure_network.h"

// Writes what `hayloft link` over ranks prints, and what `hayloft plan` reads of it.
namespace hayloft::runtime::plan {
namespace {

constexpr const char* network_schema = "hayloft.network/1";

const char* collective(const NetworkFigure& figure) {
  return figure.broadcast ? "broadcast" : "all-gather";
}

}  // namespace

std::string network_table(const NetworkReport& report) {
  const Network network = report.network();
  const std::set<std::string> hosts(report.hosts.begin(), report.hosts.end());
  std::string text = fmt::format("{} ranks on {}\n\n", report.ranks, fmt::join(hosts, ", "));
  TextTable table{{"message", "collective", "a rank sends", "us", "slowest", "fastest", "turns", "Gbit/s received"}};
  for (const NetworkFigure& figure : report.figures) {
    table.push_back({figure.what, collective(figure), format_bytes(figure.sent_bytes),
                     fmt::format("{:.5g}{}", figure.median_us, figure.unreliable() ? "*" : ""),
                     fmt::format("{:.5g}", figure.slowest_us), fmt::format("{:.5g}", figure.fastest_us),
                     fmt::format("{}", figure.turns), fmt::format("{:.4g}", figure.gigabits_per_second())});
  }
  text += markdown(table);
  text += fmt::format("\nAs plan takes it: --network {:.4g},{:.4g}\n", network.gigabits_per_second, network.latency_us);
  if (std::ranges::any_of(report.figures, &NetworkFigure::unreliable)) {
    text += "\n\\*: its turns lie more than a quarter of it apart; another run may say otherwise\n";
  }
  return text;
}

std::string network_csv(const NetworkReport& report) {
  TextTable table{{"message", "collective", "sent_bytes", "received_bytes", "median_us", "slowest_us", "fastest_us",
                   "turns", "received_Gbitps"}};
  for (const NetworkFigure& figure : report.figures) {
    table.push_back({figure.what, collective(figure), fmt::format("{}", figure.sent_bytes),
                     fmt::format("{}", figure.arrived_bytes), fmt::format("{:.6g}", figure.median_us),
                     fmt::format("{:.6g}", figure.slowest_us), fmt::format("{:.6g}", figure.fastest_us),
                     fmt::format("{}", figure.turns), fmt::format("{:.6g}", figure.gigabits_per_second())});
  }
  return csv(table);
}

std::string network_json(const NetworkReport& report) {
  const Network network = report.network();
  nlohmann::ordered_json json{{"schema", network_schema},
                              {"version", report.version},
                              {"date", report.date},
                              {"ranks", report.ranks},
                              {"hosts", report.hosts},
                              {"one_machine", report.on_one_machine()},
                              {"shared_machines", report.share_machines()},
                              {"latency_us", network.latency_us},
                              {"Gbitps", network.gigabits_per_second},
                              {"figures", nlohmann::ordered_json::array()}};
  for (const NetworkFigure& figure : report.figures) {
    json["figures"].push_back({{"message", figure.what},
                               {"collective", collective(figure)},
                               {"sent_bytes", figure.sent_bytes},
                               {"received_bytes", figure.arrived_bytes},
                               {"turns", figure.turns},
                               {"median_us", figure.median_us},
                               {"slowest_us", figure.slowest_us},
                               {"fastest_us", figure.fastest_us},
                               {"received_Gbitps", figure.gigabits_per_second()}});
  }
  return json_document(json);
}

}  // namespace hayloft::runtime::plan
