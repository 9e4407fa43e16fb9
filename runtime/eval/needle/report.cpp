#include "runtime/eval/needle/report.h"
#include "runtime/fidelity/attention_statement.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "offload/text/format.h"
#include "offload/text/json_text.h"
#include "offload/text/text_table.h"
#include "runtime/decode/device_memory.h"
#include "runtime/eval/means.h"
#include "runtime/eval/reach.h"

namespace hayloft::runtime::eval {
namespace {

std::string rounded_bytes(const Mean& bytes) {
  return format_bytes(static_cast<std::uint64_t>(std::max(0.0, bytes.value().value_or(0)) + 0.5));
}

bool hit(const EvalRow& row) {
  return row.score == 1;
}

std::string found(const Group& group) {
  return fmt::format("{:.0f}/{}", group.score.sum, group.score.count);
}

std::string depth_label(double depth) {
  return fmt::format("{:.3g}%", depth);
}

nlohmann::ordered_json row_json(const EvalRow& row) {
  const bool dense = row.attn.name == "dense";
  nlohmann::ordered_json json;
  json["attn"] = row.attn.name;
  json["method"] = method_label(row.attn);
  json["r"] = has_rank(row.attn) ? nlohmann::ordered_json(row.attn.rank) : nullptr;
  json["k"] = dense ? nullptr : nlohmann::ordered_json(row.k);
  json["window"] = dense ? nullptr : nlohmann::ordered_json(row.window);
  json["tokens"] = row.ctx_size;
  json["depth"] = row.depth.value_or(0);
  json["expected"] = row.expected.front();
  json["answer"] = row.prediction;
  json["hit"] = hit(row);
  json["prefill_seconds"] = row.prefill_seconds;
  json["prepare_seconds"] = row.prepare_seconds;
  json["state_bytes"] = row.state_bytes;
  json["decode_ms_per_token"] = row.ms_per_token;
  json["link_bytes_per_token"] = row.link_bytes_per_token;
  json["near_bytes_per_token"] = row.near_bytes_per_token;
  json["positions_scored_per_token"] = row.positions_scored_per_token;
  json["recall"] = json_or_null(row.recall);
  json["attended_share"] = row.attended_share;
  json["attention"] = attention_statement(row.attended_share, method_label(row.attn), row.mass, row.products,
                                          row.prefill == "exact" || row.read_whole ? "" : row.prefill, row.rows);
  json["block_tokens"] = row.block_tokens;
  json["network_messages_per_token"] = row.network_messages_per_token;
  json["network_sent_bytes_per_token"] = row.network_sent_per_token;
  json["network_received_bytes_per_token"] = row.network_received_per_token;
  return json;
}

}  // namespace

std::string needle_line(const EvalRow& row) {
  std::string line = fmt::format("  {:<20} depth {:>5}  {} {}", method_label(row.attn),
                                 depth_label(row.depth.value_or(0)), row.expected.front(),
                                 hit(row) ? "found " : fmt::format("missed, answered '{}'", one_line(row.prediction)));
  if (row.recall) line += fmt::format("  recall {:.3f}", *row.recall);
  return line + fmt::format("  {:.1f} ms/token", row.ms_per_token);
}

std::string needle_summary(const NeedleReport& report) {
  TextTable table{{"attention", "context", "found", "attended", "recall", "prefill s", "decode ms/token", "link/token",
                   "near/token"}};
  const std::vector<Group> groups = group_rows(report.rows, false);
  for (const Group& group : groups) {
    table.push_back({group.label + (attended_to_most(group) ? " *" : ""), format_count(group.ctx_size), found(group),
                     attended_percent(group),
                     group.recall.count > 0 ? fmt::format("{:.3f}", *group.recall.value()) : "-",
                     fmt::format("{:.1f}", *group.prefill.value()), fmt::format("{:.2f}", *group.ms.value()),
                     rounded_bytes(group.link), rounded_bytes(group.near)});
  }
  return aligned(table) + reach_notes(groups);
}

std::string needle_json(const NeedleReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.needle/1";
  json["model"] = report.model;
  json["device"] = report.device;
  json["seed"] = report.seed;
  json["prefill"] = report.prefill;
  json["columns"] = report.columns;
  json["row_format"] = report.row_format;
  json["weights"] = report.weights;
  json["device_memory"] = device_memory_json(report.memory);
  json["ranks"] = report.ranks;
  json["complete"] = report.complete;
  json["rows"] = nlohmann::ordered_json::array();
  for (const EvalRow& row : report.rows) json["rows"].push_back(row_json(row));
  return json_document(json);
}

Heatmap needle_heatmap(const NeedleReport& report) {
  std::set<std::int64_t> contexts;
  std::set<double> depths;
  std::vector<std::string> methods;
  for (const EvalRow& row : report.rows) {
    contexts.insert(row.ctx_size);
    depths.insert(row.depth.value_or(0));
    const std::string method = method_label(row.attn);
    if (std::find(methods.begin(), methods.end(), method) == methods.end()) methods.push_back(method);
  }
  Heatmap heatmap;
  heatmap.title = "Needle in a haystack";
  heatmap.subtitle = fmt::format("{}, {}, seed {}", one_line(report.model), report.device, report.seed);
  heatmap.x_label = "context length (tokens)";
  heatmap.y_label = "needle depth";
  heatmap.legend = "needles found";
  heatmap.yes = "found";
  heatmap.no = "missed";
  for (const std::int64_t tokens : contexts) heatmap.columns.push_back(format_count(tokens));
  for (const double depth : depths) heatmap.rows.push_back(depth_label(depth));
  for (const std::string& method : methods) {
    std::vector<Group> cells(contexts.size() * depths.size());
    std::vector<Group> columns(contexts.size());
    for (const EvalRow& row : report.rows) {
      if (method_label(row.attn) != method) continue;
      const auto column = static_cast<std::size_t>(std::distance(contexts.begin(), contexts.find(row.ctx_size)));
      const auto line = static_cast<std::size_t>(std::distance(depths.begin(), depths.find(row.depth.value_or(0))));
      cells[line * contexts.size() + column].add(row);
      columns[column].add(row);
    }
    HeatmapPanel panel;
    panel.title = method;
    for (const Group& column : columns) panel.notes.push_back(found(column));
    for (const Group& cell : cells) panel.values.push_back(cell.score.value());
    heatmap.panels.push_back(std::move(panel));
  }
  return heatmap;
}

}  // namespace hayloft::runtime::eval
