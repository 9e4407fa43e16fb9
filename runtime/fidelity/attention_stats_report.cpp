#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "offload/text/json_text.h"
#include "offload/text/text_table.h"
#include "runtime/fidelity/attention_stats.h"

namespace hayloft::runtime {
namespace {

nlohmann::ordered_json stats_json(const RunningStats& stats) {
  return {{"mean", stats.mean()}, {"least", stats.min}, {"most", stats.max}};
}

// A heading per entry of the first layer's map, and a function that gives a layer's cells: all layers have the same.
template <class Map, class Name>
void add_columns(TextTable& table, const AttentionReport& report, Map LayerAttention::*member, Name name) {
  std::size_t line = 0;
  for (const auto& [layer, attention] : report.layers) {
    ++line;
    for (const auto& [key, stats] : attention.*member) {
      if (line == 1) table.front().push_back(name(key));
      table[line].push_back(fmt::format("{:.3f}", stats.mean()));
    }
  }
}

TextTable layers_table(const AttentionReport& report) {
  TextTable table{{"layer"}};
  for (const auto& [layer, attention] : report.layers) table.push_back({fmt::format("{}", layer)});
  return table;
}

// Returns nothing where the model has no experts.
std::string experts_table(const AttentionReport& report) {
  if (report.experts.empty()) return "";
  TextTable table{{"layer", "experts"}};
  for (const auto& [layer, experts] : report.experts) {
    std::vector<std::string> cells{fmt::format("{}", layer), fmt::format("{}", experts.count)};
    for (const auto& [slots, held] : experts.held) {
      if (table.size() == 1) table.front().push_back(fmt::format("{} slots", slots));
      cells.push_back(fmt::format("{:.3f}", held.mean()));
    }
    table.push_back(std::move(cells));
  }
  return fmt::format(
             "\nShare of the experts asked for that a device had which keeps so many of a layer, from step {} on:\n\n",
             LayerAttention::warm + 1) +
         markdown(table);
}

}  // namespace

std::string attention_table(const AttentionReport& report) {
  std::string text =
      fmt::format("{} steps, {} tokens of context; means over steps and heads\n\n", report.steps, report.tokens);
  if (report.layers.empty()) return text + experts_table(report);
  TextTable spread = layers_table(report);
  spread.front().insert(spread.front().end(), {"entropy", "keys for 25%", "for 50%", "for 75%", "kurtosis of q"});
  std::size_t line = 0;
  for (const auto& [layer, attention] : report.layers) {
    std::vector<std::string>& cells = spread[++line];
    cells.push_back(fmt::format("{:.2f}", attention.entropy.mean()));
    for (const RunningStats& keys : attention.keys) cells.push_back(fmt::format("{:.0f}", keys.mean()));
    cells.push_back(fmt::format("{:.2f}", attention.kurtosis.mean()));
  }
  TextTable top = layers_table(report);
  add_columns(top, report, &LayerAttention::top_mass, [](std::int64_t k) { return fmt::format("mass of top {}", k); });
  TextTable agreement = layers_table(report);
  add_columns(agreement, report, &LayerAttention::agreement,
              [](const std::pair<int, std::int64_t>& key) { return fmt::format("r={} k={}", key.first, key.second); });
  TextTable again = layers_table(report);
  add_columns(again, report, &LayerAttention::columns_again, [](int r) { return fmt::format("columns r={}", r); });
  add_columns(again, report, &LayerAttention::positions_again,
              [](std::int64_t k) { return fmt::format("positions k={}", k); });
  TextTable held = layers_table(report);
  add_columns(held, report, &LayerAttention::columns_held,
              [](const std::pair<int, int>& key) { return fmt::format("r={} of {}", key.first, key.second); });
  text += markdown(spread) + "\n" + markdown(top);
  text += "\nShare of the exact top k among the approximate top k:\n\n" + markdown(agreement);
  text += "\nShare chosen again in the next step:\n\n" + markdown(again);
  if (report.layers.begin()->second.columns_held.empty()) return text + experts_table(report);
  text += fmt::format("\nShare of the r columns read that a device had which keeps so many, from step {} on:\n\n",
                      LayerAttention::warm + 1) +
          markdown(held);
  return text + experts_table(report);
}

std::string attention_json(const AttentionReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.attention/1";
  json["steps"] = report.steps;
  json["tokens"] = report.tokens;
  json["layers"] = nlohmann::ordered_json::array();
  for (const auto& [layer, attention] : report.layers) {
    nlohmann::ordered_json entry;
    entry["layer"] = layer;
    entry["entropy"] = stats_json(attention.entropy);
    entry["kurtosis"] = stats_json(attention.kurtosis);
    for (int i = 0; i < 3; ++i) {
      nlohmann::ordered_json row = stats_json(attention.keys[i]);
      row["share"] = LayerAttention::shares[i];
      entry["keys"].push_back(std::move(row));
    }
    const auto add = [&](const char* name, nlohmann::ordered_json row, const RunningStats& stats) {
      row.update(stats_json(stats));
      entry[name].push_back(std::move(row));
    };
    for (const auto& [k, stats] : attention.top_mass) add("top_mass", {{"k", k}}, stats);
    for (const auto& [key, stats] : attention.agreement) {
      add("agreement", {{"r", key.first}, {"k", key.second}}, stats);
    }
    for (const auto& [r, stats] : attention.columns_again) add("columns_again", {{"r", r}}, stats);
    for (const auto& [k, stats] : attention.positions_again) add("positions_again", {{"k", k}}, stats);
    for (const auto& [key, stats] : attention.columns_held) {
      add("columns_held", {{"r", key.first}, {"kept", key.second}}, stats);
    }
    json["layers"].push_back(std::move(entry));
  }
  for (const auto& [layer, experts] : report.experts) {
    nlohmann::ordered_json entry{
        {"layer", layer}, {"experts", experts.count}, {"held", nlohmann::ordered_json::array()}};
    for (const auto& [slots, held] : experts.held) {
      nlohmann::ordered_json row{{"kept", slots}};
      row.update(stats_json(held));
      entry["held"].push_back(std::move(row));
    }
    json["experts"].push_back(std::move(entry));
  }
  return json_document(json);
}

}  // namespace hayloft::runtime
