#include "runtime/eval/attention_chart.h"

#include <fmt/format.h>

#include <map>

#include "offload/text/format.h"

namespace hayloft::runtime::eval {
namespace {

constexpr Interval share{0, 1};

LinePoint point(double x, const RunningStats& stats, bool band) {
  if (!band) return {x, stats.mean()};
  return {x, stats.mean(), Interval{stats.min, stats.max}};
}

LinePanel by_layer(const AttentionReport& report, const std::string& title, const std::string& y_label,
                   RunningStats LayerAttention::*figure) {
  LinePanel panel{title, "layer", y_label, false, {}, {{}}};
  for (const auto& [layer, attention] : report.layers) {
    panel.series[0].points.push_back(point(layer, attention.*figure, true));
  }
  return panel;
}

// A line per key of the layers' maps, which all have the same.
template <class Map, class Name>
void add_lines(LinePanel& panel, const AttentionReport& report, Map LayerAttention::*figures, Name name) {
  for (const auto& [key, first] : report.layers.begin()->second.*figures) {
    LineSeries series{name(key), {}};
    for (const auto& [layer, attention] : report.layers) {
      series.points.push_back(point(layer, (attention.*figures).at(key), false));
    }
    panel.series.push_back(std::move(series));
  }
}

// The layers' means, by a pair of keys: a line per `line` of the pair, from left to right by the other.
template <class Map, class Line, class Along, class Name>
void add_means(LinePanel& panel, const AttentionReport& report, Map LayerAttention::*figures, Line line, Along along,
               Name name) {
  std::map<std::int64_t, std::map<std::int64_t, RunningStats>> lines;
  for (const auto& [layer, attention] : report.layers) {
    for (const auto& [key, stats] : attention.*figures) lines[line(key)][along(key)].add(stats.mean());
  }
  for (const auto& [key, points] : lines) {
    LineSeries series{name(key), {}};
    for (const auto& [x, stats] : points) series.points.push_back(point(static_cast<double>(x), stats, true));
    panel.series.push_back(std::move(series));
  }
}

}  // namespace

LineChart attention_chart(const AttentionReport& report) {
  LineChart chart{"What attention is like",
                  fmt::format("{} steps, {} tokens of context; means over heads and steps", report.steps,
                              format_count(report.tokens)),
                  {}};
  chart.panels.push_back(by_layer(report, "Entropy", "nats", &LayerAttention::entropy));

  LinePanel mass{"Mass of the k largest weights", "layer", "share of the softmax", false, share, {}};
  add_lines(mass, report, &LayerAttention::top_mass, [](std::int64_t k) { return fmt::format("k = {}", k); });
  chart.panels.push_back(std::move(mass));

  const auto rank = [](const auto& key) { return std::int64_t{key.first}; };
  const auto other = [](const auto& key) { return static_cast<std::int64_t>(key.second); };
  LinePanel found{"Top k found by r components", "r", "share of the exact top k", true, share, {}};
  add_means(found, report, &LayerAttention::agreement, other, rank,
            [](std::int64_t k) { return fmt::format("k = {}", k); });
  chart.panels.push_back(std::move(found));

  LinePanel again{"Chosen again in the next step", "layer", "share", false, share, {}};
  add_lines(again, report, &LayerAttention::columns_again, [](int r) { return fmt::format("r = {}", r); });
  add_lines(again, report, &LayerAttention::positions_again, [](std::int64_t k) { return fmt::format("k = {}", k); });
  if (!again.series.empty()) chart.panels.push_back(std::move(again));

  LinePanel held{"Columns that a device had", "columns kept", "share of the columns read", true, share, {}};
  add_means(held, report, &LayerAttention::columns_held, rank, other,
            [](std::int64_t r) { return fmt::format("r = {}", r); });
  if (!held.series.empty()) chart.panels.push_back(std::move(held));

  chart.panels.push_back(by_layer(report, "Kurtosis of queries", "kurtosis", &LayerAttention::kurtosis));
  return chart;
}

}  // namespace hayloft::runtime::eval
