#include "runtime/eval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "offload/format.h"

namespace hayloft::runtime {
namespace {

struct Mean {
  double sum = 0;
  int count = 0;

  void add(double value) {
    sum += value;
    ++count;
  }
  void add(const std::optional<double>& value) {
    if (value) add(*value);
  }
  std::optional<double> value() const { return count > 0 ? std::optional(sum / count) : std::nullopt; }
};

// What a method did at one length: in one task, or in all of them.
struct Group {
  std::string task;
  std::int64_t ctx_size = 0;
  std::string method;  // method_key
  std::string label;
  Measure measure = Measure::share;
  Mean score;  // of perplexity, the logarithm
  Mean top1, kl, recall, mass, error, elements, near, link, ms, prepare, state;

  void add(const EvalRow& row) {
    score.add(row.measure == Measure::perplexity ? std::log(row.score) : row.score);
    top1.add(row.top1);
    kl.add(row.kl);
    recall.add(row.recall);
    mass.add(row.mass);
    error.add(row.output_error);
    elements.add(row.elements_per_token);
    near.add(row.near_bytes_per_token);
    link.add(row.link_bytes_per_token);
    ms.add(row.ms_per_token);
    prepare.add(row.prepare_seconds);
    state.add(static_cast<double>(row.state_bytes));
  }

  double mean_score() const {
    const double mean = score.value().value_or(0);
    return measure == Measure::perplexity ? std::exp(mean) : mean;
  }
};

// In the order in which they were first met; by_task: a group per task, else one for all tasks of a length.
std::vector<Group> group_rows(const std::vector<EvalRow>& rows, bool by_task) {
  std::vector<Group> groups;
  for (const EvalRow& row : rows) {
    const std::string task = by_task ? row.task : "";
    const std::string method = method_key(row.attn);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& each) {
      return each.task == task && each.ctx_size == row.ctx_size && each.method == method;
    });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), Group{});
      group->task = task;
      group->ctx_size = row.ctx_size;
      group->method = method;
      group->label = method_label(row.attn);
      group->measure = row.measure;
    }
    group->add(row);
  }
  return groups;
}

struct MethodName {
  std::string key, label;
};
std::vector<MethodName> methods_of(const std::vector<EvalRow>& rows) {
  std::vector<MethodName> methods;
  for (const EvalRow& row : rows) {
    const std::string key = method_key(row.attn);
    const auto same = [&](const MethodName& each) { return each.key == key; };
    if (std::none_of(methods.begin(), methods.end(), same)) methods.push_back({key, method_label(row.attn)});
  }
  return methods;
}

// The mean over a method's tasks at one length that have this measure.
std::optional<double> mean_over_tasks(const std::vector<Group>& by_task, const std::string& method,
                                      std::int64_t ctx_size, Measure measure) {
  Mean mean;
  for (const Group& group : by_task) {
    if (group.method == method && group.ctx_size == ctx_size && group.measure == measure) mean.add(group.mean_score());
  }
  return mean.value();
}

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

TextTable transposed(const TextTable& table) {
  TextTable other(table[0].size());
  for (const auto& line : table) {
    for (std::size_t i = 0; i < line.size(); ++i) other[i].push_back(line[i]);
  }
  return other;
}

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
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
                     row.sample, method_label(row.attn), score_text(group), row.ms_per_token,
                     one_line(row.prediction, 60));
}

TextTable score_table(const EvalReport& report, std::int64_t ctx_size) {
  const std::vector<Group> groups = group_rows(report.rows, true);
  const std::vector<MethodName> methods = methods_of(report.rows);
  TextTable table{{format_count(ctx_size)}};
  for (const MethodName& method : methods) table[0].push_back(method.label);
  std::vector<std::string> tasks;
  int shares = 0;
  for (const Group& group : groups) {
    if (group.ctx_size != ctx_size || std::find(tasks.begin(), tasks.end(), group.task) != tasks.end()) continue;
    tasks.push_back(group.task);
    shares += group.measure == Measure::share;
  }
  for (const std::string& task : tasks) {
    std::vector<std::string> line{task};
    for (const MethodName& method : methods) {
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& each) {
        return each.ctx_size == ctx_size && each.task == task && each.method == method.key;
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
    const bool whole = scores.size() == lengths.size();
    table.back().push_back(whole ? percent(weighted(scores, true)) : "-");
    table.back().push_back(whole ? percent(weighted(scores, false)) : "-");
    table.back().push_back(effective > 0 ? format_count(effective) : "-");
  }
  return table;
}

TextTable cost_table(const EvalReport& report) {
  TextTable table{{"attention", "context", "samples", "recall", "mass", "error", "top-1", "KL", "elements/token",
                   "near/token", "link/token", "ms/token", "prepare s", "state"}};
  for (const Group& group : group_rows(report.rows, false)) {
    table.push_back({group.label, format_count(group.ctx_size), fmt::format("{}", group.ms.count),
                     figure(group.recall, "{:.3f}"), figure(group.mass, "{:.3f}"), figure(group.error, "{:.3g}"),
                     figure(group.top1, "{:.3f}"), figure(group.kl, "{:.3g}"), figure(group.elements, "{:.4g}"),
                     bytes_text(group.near), bytes_text(group.link), figure(group.ms, "{:.2f}"),
                     figure(group.prepare, "{:.2f}"), bytes_text(group.state)});
  }
  return table;
}

std::string eval_summary(const EvalReport& report, std::string (*format)(const TextTable&)) {
  std::string text;
  for (const std::int64_t length : eval_lengths(report)) text += format(score_table(report, length)) + "\n";
  if (const TextTable lengths = length_table(report); !lengths.empty()) text += format(lengths) + "\n";
  return text + format(cost_table(report));
}

std::string eval_json(const EvalReport& report) {
  nlohmann::ordered_json json;
  json["schema"] = "hayloft.eval-report/1";
  json["recipe"] = nlohmann::ordered_json::parse(recipe_json(report.recipe));
  json["means"] = nlohmann::ordered_json::array();
  for (const Group& group : group_rows(report.rows, true)) {
    json["means"].push_back({{"task", group.task},
                             {"ctx_size", group.ctx_size},
                             {"attn", group.label},
                             {"samples", group.score.count},
                             {"measure", name(group.measure)},
                             {"score", group.mean_score()},
                             {"top1", or_null(group.top1.value())},
                             {"kl", or_null(group.kl.value())},
                             {"recall", or_null(group.recall.value())},
                             {"mass", or_null(group.mass.value())},
                             {"output_error", or_null(group.error.value())},
                             {"elements_per_token", or_null(group.elements.value())},
                             {"near_bytes_per_token", or_null(group.near.value())},
                             {"link_bytes_per_token", or_null(group.link.value())},
                             {"ms_per_token", or_null(group.ms.value())},
                             {"prepare_seconds", or_null(group.prepare.value())},
                             {"state_bytes", or_null(group.state.value())}});
  }
  json["rows"] = nlohmann::ordered_json::array();
  for (const EvalRow& row : report.rows) {
    json["rows"].push_back(nlohmann::ordered_json::parse(eval_row_json(row, recipe_digest(report.recipe))));
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::optional<Scatter> eval_scatter(const EvalReport& report, EvalQuality quality) {
  const auto any = [&](Measure measure) {
    return std::any_of(report.rows.begin(), report.rows.end(),
                       [&](const EvalRow& row) { return row.measure == measure; });
  };
  const bool shares = quality == EvalQuality::automatic && any(Measure::share);
  const bool characters = quality == EvalQuality::automatic && !shares && any(Measure::characters);
  const std::vector<Group> by_task = group_rows(report.rows, true);
  const auto quality_of = [&](const Group& group) -> std::optional<double> {
    if (shares || characters) {
      const Measure measure = shares ? Measure::share : Measure::characters;
      const std::optional<double> mean = mean_over_tasks(by_task, group.method, group.ctx_size, measure);
      return mean && shares ? 100 * *mean : mean;
    }
    if (quality == EvalQuality::kl) {
      const double kl = group.kl.value().value_or(0);
      return kl > 0 ? std::optional(-std::log10(kl)) : std::nullopt;
    }
    const std::optional<double> share = (quality == EvalQuality::mass ? group.mass : group.top1).value();
    return share ? std::optional(100 * *share) : std::nullopt;
  };

  Scatter scatter;
  scatter.title = "Quality against bytes moved";
  scatter.subtitle = fmt::format("{}, {}, seed {}", report.recipe.model, report.recipe.device, report.recipe.seed);
  scatter.x_label = "bytes read per token, near and over the link";
  scatter.y_label = shares                         ? "mean score, %"
                    : characters                   ? "characters copied"
                    : quality == EvalQuality::kl   ? "-log10 KL(dense || method)"
                    : quality == EvalQuality::mass ? "attention mass caught, %"
                                                   : "top-1 agreement with dense, %";
  const std::vector<Group> all = group_rows(report.rows, false);
  for (const std::int64_t length : eval_lengths(report)) {
    ScatterPanel panel{format_count(length) + " tokens", {}};
    for (const Group& group : all) {
      if (group.ctx_size != length) continue;
      if (const std::optional<double> value = quality_of(group)) {
        panel.points.push_back({group.label, *group.near.value() + *group.link.value(), *value});
      }
    }
    if (!panel.points.empty()) scatter.panels.push_back(std::move(panel));
  }
  if (scatter.panels.empty()) return std::nullopt;
  return scatter;
}

}  // namespace hayloft::runtime
