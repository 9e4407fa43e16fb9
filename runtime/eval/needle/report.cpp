#include "runtime/eval/needle/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "offload/format.h"
#include "offload/text_table.h"
#include "runtime/decode/device_memory.h"

namespace hayloft::runtime::eval {
namespace {

// What a method did at one context length.
struct Group {
  std::string method;
  std::int64_t tokens = 0;
  int asked = 0;
  int found = 0;
  double recall = 0;  // sums, as all that follow
  int recalls = 0;
  double prefill_seconds = 0;
  double decode_ms = 0;
  double link_bytes = 0;
  double near_bytes = 0;

  void add(const NeedleRow& row) {
    ++asked;
    found += row.hit;
    if (row.recall) {
      recall += *row.recall;
      ++recalls;
    }
    prefill_seconds += row.prefill_seconds;
    decode_ms += row.decode_ms_per_token;
    link_bytes += row.link_bytes_per_token;
    near_bytes += row.near_bytes_per_token;
  }
};

// In the order the methods and contexts were first met.
std::vector<Group> group_rows(const std::vector<NeedleRow>& rows) {
  std::vector<Group> groups;
  for (const NeedleRow& row : rows) {
    const std::string method = method_label(row.attn);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& candidate) {
      return candidate.method == method && candidate.tokens == row.tokens;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{method, row.tokens});
    group->add(row);
  }
  return groups;
}

std::string rounded_bytes(double bytes) {
  return format_bytes(static_cast<std::uint64_t>(std::max(0.0, bytes) + 0.5));
}

std::string depth_label(double depth) {
  return fmt::format("{:.3g}%", depth);
}

nlohmann::ordered_json row_json(const NeedleRow& row) {
  const bool dense = row.attn.name == "dense";
  nlohmann::ordered_json json;
  json["attn"] = row.attn.name;
  json["method"] = method_label(row.attn);
  json["r"] = has_rank(row.attn) ? nlohmann::ordered_json(row.attn.rank) : nullptr;
  json["k"] = dense ? nullptr : nlohmann::ordered_json(row.k);
  json["window"] = dense ? nullptr : nlohmann::ordered_json(row.window);
  json["tokens"] = row.tokens;
  json["depth"] = row.depth;
  json["expected"] = row.expected;
  json["answer"] = row.answer;
  json["hit"] = row.hit;
  json["prefill_seconds"] = row.prefill_seconds;
  json["prepare_seconds"] = row.prepare_seconds;
  json["state_bytes"] = row.state_bytes;
  json["decode_ms_per_token"] = row.decode_ms_per_token;
  json["link_bytes_per_token"] = row.link_bytes_per_token;
  json["near_bytes_per_token"] = row.near_bytes_per_token;
  json["positions_scored_per_token"] = row.positions_scored_per_token;
  json["recall"] = row.recall ? nlohmann::ordered_json(*row.recall) : nullptr;
  return json;
}

}  // namespace

std::string needle_line(const NeedleRow& row) {
  std::string line =
      fmt::format("  {:<20} depth {:>5}  {} {}", method_label(row.attn), depth_label(row.depth), row.expected,
                  row.hit ? "found " : fmt::format("missed, answered '{}'", one_line(row.answer)));
  if (row.recall) line += fmt::format("  recall {:.3f}", *row.recall);
  return line + fmt::format("  {:.1f} ms/token", row.decode_ms_per_token);
}

std::string needle_summary(const NeedleReport& report) {
  TextTable table{
      {"attention", "context", "found", "recall", "prefill s", "decode ms/token", "link/token", "near/token"}};
  for (const Group& group : group_rows(report.rows)) {
    const double n = group.asked;
    table.push_back({group.method, format_count(group.tokens), fmt::format("{}/{}", group.found, group.asked),
                     group.recalls > 0 ? fmt::format("{:.3f}", group.recall / group.recalls) : "-",
                     fmt::format("{:.1f}", group.prefill_seconds / n), fmt::format("{:.2f}", group.decode_ms / n),
                     rounded_bytes(group.link_bytes / n), rounded_bytes(group.near_bytes / n)});
  }
  return aligned(table);
}

std::string needle_json(const NeedleReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.needle/1";
  json["model"] = report.model;
  json["device"] = report.device;
  json["seed"] = report.seed;
  json["prefill"] = report.prefill;
  json["columns"] = report.columns;
  json["device_memory"] = device_memory_json(report.memory);
  json["complete"] = report.complete;
  json["rows"] = nlohmann::ordered_json::array();
  for (const NeedleRow& row : report.rows) json["rows"].push_back(row_json(row));
  // An answer may end in the middle of a character, and a folder's name may be anything.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Heatmap needle_heatmap(const NeedleReport& report) {
  std::set<std::int64_t> contexts;
  std::set<double> depths;
  std::vector<std::string> methods;
  for (const NeedleRow& row : report.rows) {
    contexts.insert(row.tokens);
    depths.insert(row.depth);
    const std::string method = method_label(row.attn);
    if (std::find(methods.begin(), methods.end(), method) == methods.end()) methods.push_back(method);
  }
  Heatmap heatmap;
  heatmap.title = "Needle in a haystack";
  heatmap.subtitle = fmt::format("{}, {}, seed {}", one_line(report.model), report.device, report.seed);
  heatmap.x_label = "context length (tokens)";
  heatmap.y_label = "needle depth";
  heatmap.legend = "needles found";
  for (const std::int64_t tokens : contexts) heatmap.columns.push_back(format_count(tokens));
  for (const double depth : depths) heatmap.rows.push_back(depth_label(depth));
  for (const std::string& method : methods) {
    std::vector<Group> cells(contexts.size() * depths.size());
    std::vector<Group> columns(contexts.size());
    for (const NeedleRow& row : report.rows) {
      if (method_label(row.attn) != method) continue;
      const auto column = static_cast<std::size_t>(std::distance(contexts.begin(), contexts.find(row.tokens)));
      const auto line = static_cast<std::size_t>(std::distance(depths.begin(), depths.find(row.depth)));
      cells[line * contexts.size() + column].add(row);
      columns[column].add(row);
    }
    HeatmapPanel panel;
    panel.title = method;
    for (const Group& column : columns) panel.notes.push_back(fmt::format("{}/{}", column.found, column.asked));
    for (const Group& cell : cells) {
      panel.values.push_back(cell.asked > 0 ? std::optional(static_cast<double>(cell.found) / cell.asked)
                                            : std::nullopt);
    }
    heatmap.panels.push_back(std::move(panel));
  }
  return heatmap;
}

}  // namespace hayloft::runtime::eval
