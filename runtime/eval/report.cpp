#include "runtime/eval/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "offload/text/format.h"
#include "offload/text/json_text.h"
#include "runtime/eval/means.h"
#include "runtime/eval/reach.h"

namespace hayloft::runtime::eval {
namespace {

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.2f}", 100 * *share) : "-";
}

std::string score_text(const Group& group) {
  const double score = group.mean_score();
  if (group.measure == Measure::share) return percent(score);
  return group.measure == Measure::characters ? fmt::format("{:.1f}", score) : fmt::format("{:.4g}", score);
}

std::string bytes_text(const Mean& mean) {
  return format_bytes(static_cast<std::uint64_t>(std::max(0.0, mean.value().value_or(0)) + 0.5));
}

std::string figure(const Mean& mean, const char* format) {
  return mean.count > 0 ? fmt::format(fmt::runtime(format), *mean.value()) : "-";
}

// Weighted by 1..n in ascending order of length, or n..1.
double weighted(const std::vector<double>& scores, bool increasing) {
  double sum = 0, weights = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const auto weight = static_cast<double>(increasing ? i + 1 : scores.size() - i);
    sum += weight * scores[i];
    weights += weight;
  }
  return sum / weights;
}

std::vector<std::int64_t> share_lengths(const EvalReport& report) {
  std::set<std::int64_t> lengths;
  for (const EvalRow& row : report.rows) {
    if (row.measure == Measure::share) lengths.insert(row.ctx_size);
  }
  return {lengths.begin(), lengths.end()};
}

// Returns whether all lengths have the same tasks that are scored in percent.
bool tasks_alike(const std::vector<Group>& by_task) {
  std::map<std::int64_t, std::set<std::string>> tasks;
  for (const Group& group : by_task) {
    if (group.measure == Measure::share) tasks[group.ctx_size].insert(group.task);
  }
  return std::ranges::all_of(tasks, [&](const auto& of) { return of.second == tasks.begin()->second; });
}

TextTable transposed(const TextTable& table) {
  TextTable other(table[0].size());
  for (const auto& line : table) {
    for (std::size_t i = 0; i < line.size(); ++i) other[i].push_back(line[i]);
  }
  return other;
}

}  // namespace

std::vector<std::int64_t> eval_lengths(const EvalReport& report) {
  std::set<std::int64_t> lengths;
  for (const EvalRow& row : report.rows) lengths.insert(row.ctx_size);
  return {lengths.begin(), lengths.end()};
}

std::string eval_line(const EvalRow& row) {
  Group group;
  group.measure = row.measure;
  group.add(row);
  return fmt::format("  {:<16} {:>5} #{:<3} {:<20} {:>8}  {:.2f} ms/token  {}", row.task, format_count(row.ctx_size),
                     row.sample, method_label(row.attn) + (row.prefill == "exact" ? "" : ", read " + row.prefill),
                     score_text(group), row.ms_per_token, one_line(row.prediction, 60));
}

TextTable score_table(const EvalReport& report, std::int64_t ctx_size) {
  const std::vector<Group> groups = group_rows(report.rows, true, ctx_size);
  const std::vector<MethodName> methods = methods_of(report.rows);
  TextTable table{{format_count(ctx_size)}};
  const std::vector<Group> all = group_rows(report.rows, false, ctx_size);
  for (const MethodName& method : methods) {
    const bool marked = std::any_of(
        all.begin(), all.end(), [&](const Group& each) { return each.method == method.key && attended_to_most(each); });
    table[0].push_back(method.label + (marked ? " *" : ""));
  }
  std::vector<std::string> tasks;
  int shares = 0;
  for (const Group& group : groups) {
    if (std::find(tasks.begin(), tasks.end(), group.task) != tasks.end()) continue;
    tasks.push_back(group.task);
    shares += group.measure == Measure::share;
  }
  for (const std::string& task : tasks) {
    std::vector<std::string> line{task};
    for (const MethodName& method : methods) {
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& each) {
        return each.task == task && each.method == method.key;
      });
      line.push_back(group == groups.end() ? "-" : score_text(*group));
      if (group != groups.end() && group->measure == Measure::characters && line[0] == task) {
        line[0] += fmt::format(" ({})", name(group->measure));
      }
    }
    table.push_back(std::move(line));
  }
  if (shares > 1) {
    table.push_back({fmt::format("mean of {}", shares)});
    for (const MethodName& method : methods) {
      table.back().push_back(percent(mean_over_tasks(groups, method.key, ctx_size, Measure::share)));
    }
  }
  return methods.size() < table.size() ? table : transposed(table);
}

TextTable length_table(const EvalReport& report) {
  const std::vector<std::int64_t> lengths = share_lengths(report);
  if (lengths.size() < 2) return {};
  const std::vector<Group> groups = group_rows(report.rows, true);
  const bool comparable = tasks_alike(groups);
  TextTable table{{"attention"}};
  for (const std::int64_t length : lengths) table[0].push_back(format_count(length));
  table[0].insert(table[0].end(), {"wAvg (inc)", "wAvg (dec)", "effective length"});
  for (const MethodName& method : methods_of(report.rows)) {
    table.push_back({method.label});
    std::vector<double> scores;
    std::int64_t effective = 0;
    for (const std::int64_t length : lengths) {
      const std::optional<double> mean = mean_over_tasks(groups, method.key, length, Measure::share);
      table.back().push_back(percent(mean));
      if (!mean) continue;
      scores.push_back(*mean);
      if (*mean >= report.effective_share) effective = length;
    }
    const bool whole = comparable && scores.size() == lengths.size();
    table.back().push_back(whole ? percent(weighted(scores, true)) : "-");
    table.back().push_back(whole ? percent(weighted(scores, false)) : "-");
    table.back().push_back(comparable && effective > 0 ? format_count(effective) : "-");
  }
  return table;
}

TextTable cost_table(const EvalReport& report) {
  TextTable table{{"attention", "context", "samples", "attended", "recall", "mass", "error", "top-1", "KL",
                   "of 12 drafted", "elements/token", "near/token", "link/token", "ms/token", "prepare s", "state"}};
  for (const Group& group : group_rows(report.rows, false)) {
    table.push_back({group.label + (attended_to_most(group) ? " *" : ""), format_count(group.ctx_size),
                     fmt::format("{}", group.ms.count), attended_percent(group), figure(group.recall, "{:.3f}"),
                     figure(group.mass, "{:.3f}"), figure(group.error, "{:.3g}"), figure(group.top1, "{:.3f}"),
                     figure(group.kl, "{:.3g}"), figure(group.accepted(), "{:.1f}"), figure(group.elements, "{:.4g}"),
                     bytes_text(group.near), bytes_text(group.link), figure(group.ms, "{:.2f}"),
                     figure(group.prepare, "{:.2f}"), bytes_text(group.state)});
  }
  return table;
}

TextTable coverage_table(const EvalReport& report) {
  TextTable table{{"attention", "context", "samples", "error", "AUC of error > 0.25", "within 3x"}};
  for (const Group& group : group_rows(report.rows, false)) {
    if (!group.error_within.value()) continue;
    table.push_back({group.label, format_count(group.ctx_size), fmt::format("{}", group.error_within.count),
                     figure(group.error, "{:.3g}"), figure(group.error_auc, "{:.3f}"),
                     figure(group.error_within, "{:.3f}")});
  }
  return table.size() > 1 ? table : TextTable();
}

std::string eval_summary(const EvalReport& report, std::string (*format)(const TextTable&)) {
  std::string text;
  for (const std::int64_t length : eval_lengths(report)) text += format(score_table(report, length)) + "\n";
  if (const TextTable lengths = length_table(report); !lengths.empty()) text += format(lengths) + "\n";
  const TextTable coverage = coverage_table(report);
  if (!coverage.empty()) text += format(coverage) + "\n";
  text += format(cost_table(report));
  if (std::ranges::any_of(report.rows, [](const EvalRow& row) { return row.drafts.has_value(); })) {
    text += fmt::format("dense: drafted by {} tokens a pass and verified, so its costs are not those of single steps\n",
                        report.recipe.drafts);
  }
  return text + reach_notes(group_rows(report.rows, false));
}

std::string eval_json(const EvalReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.eval-report/1";
  json["recipe"] = nlohmann::ordered_json::parse(recipe_json(report.recipe));
  json["ranks"] = report.recipe.ranks;
  json["means"] = nlohmann::ordered_json::array();
  for (const Group& group : group_rows(report.rows, true)) {
    json["means"].push_back({{"task", group.task},
                             {"ctx_size", group.ctx_size},
                             {"prefill", group.reading},
                             {"attn", group.label},
                             {"samples", group.score.count},
                             {"measure", name(group.measure)},
                             {"score", group.mean_score()},
                             {"top1", json_or_null(group.top1.value())},
                             {"kl", json_or_null(group.kl.value())},
                             {"accepted_of_12", json_or_null(group.accepted().value())},
                             {"accepted_by_position", group.accepted_means()},
                             {"recall", json_or_null(group.recall.value())},
                             {"mass", json_or_null(group.mass.value())},
                             {"output_error", json_or_null(group.error.value())},
                             {"error_auc", json_or_null(group.error_auc.value())},
                             {"error_within_3", json_or_null(group.error_within.value())},
                             {"attended_share", json_or_null(group.attended.value())},
                             {"elements_per_token", json_or_null(group.elements.value())},
                             {"near_bytes_per_token", json_or_null(group.near.value())},
                             {"link_bytes_per_token", json_or_null(group.link.value())},
                             {"ms_per_token", json_or_null(group.ms.value())},
                             {"prepare_seconds", json_or_null(group.prepare.value())},
                             {"state_bytes", json_or_null(group.state.value())}});
  }
  json["rows"] = nlohmann::ordered_json::array();
  for (const EvalRow& row : report.rows) {
    json["rows"].push_back(nlohmann::ordered_json::parse(eval_row_json(row, recipe_digest(report.recipe))));
  }
  return json_document(json);
}

}  // namespace hayloft::runtime::eval
