#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "offload/text/format.h"
#include "runtime/eval/interval.h"
#include "runtime/eval/json.h"
#include "runtime/eval/means.h"
#include "runtime/eval/report.h"

namespace hayloft::runtime::eval {

namespace {

constexpr double kWhole = 1 << 30;  // what dense attention reads, where that is called 1

double bytes_of(const Group& group) {
  return *group.near.value() + *group.link.value();
}

// Returns the bytes that dense attention reads at that length.
std::optional<double> dense_bytes(const std::vector<Group>& groups, std::int64_t ctx_size) {
  const auto dense = std::find_if(groups.begin(), groups.end(),
                                  [&](const Group& group) { return group.ctx_size == ctx_size && group.dense; });
  return dense == groups.end() || bytes_of(*dense) <= 0 ? std::nullopt : std::optional(bytes_of(*dense));
}

}  // namespace

std::optional<Scatter> eval_scatter(const EvalReport& report, EvalQuality quality, EvalCost cost) {
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
  // Returns the interval of the samples of all tasks together, of which each task has as many.
  const auto likely = [&](const Group& group) -> std::optional<Interval> {
    std::vector<double> values;
    for (const EvalRow& row : report.rows) {
      if (row.ctx_size != group.ctx_size || answer_key(row) != group.method) continue;
      if (shares || characters) {
        if (row.measure == (shares ? Measure::share : Measure::characters)) values.push_back(row.score);
        continue;
      }
      const std::optional<double>& value = quality == EvalQuality::kl     ? row.kl
                                           : quality == EvalQuality::mass ? row.mass
                                                                          : row.top1;
      if (value) values.push_back(*value);
    }
    if (values.size() < 2) return std::nullopt;
    if (shares) {
      const Interval share = share_interval(values);
      return Interval{100 * share.low, 100 * share.high};
    }
    const Interval mean = bootstrap_interval(values);
    if (characters) return mean;
    if (quality != EvalQuality::kl) return Interval{100 * mean.low, 100 * mean.high};
    if (mean.low <= 0) return std::nullopt;
    return Interval{-std::log10(mean.high), -std::log10(mean.low)};
  };

  Scatter scatter;
  const bool compression = cost == EvalCost::compression;
  scatter.title = compression ? "Quality against compression" : "Quality against bytes moved";
  scatter.whole = compression ? kWhole : 0;
  scatter.subtitle = fmt::format("{}, {}, seed {}", report.recipe.model, report.recipe.device, report.recipe.seed);
  scatter.x_label = compression ? "bytes read per token, of those that dense attention reads"
                                : "bytes read per token, near and over the link";
  scatter.y_label = shares                         ? "mean score, %"
                    : characters                   ? "characters copied"
                    : quality == EvalQuality::kl   ? "-log10 KL(dense || method)"
                    : quality == EvalQuality::mass ? "attention mass caught, %"
                                                   : "top-1 agreement with dense, %";
  const std::vector<Group> all = group_rows(report.rows, false);
  for (const std::int64_t length : eval_lengths(report)) {
    ScatterPanel panel{format_count(length) + " tokens", {}};
    const std::optional<double> dense = dense_bytes(all, length);
    if (compression && !dense) continue;
    for (const Group& group : all) {
      if (group.ctx_size != length) continue;
      if (const std::optional<double> value = quality_of(group)) {
        const std::string family = group.label.substr(0, group.label.find(' '));
        const double bytes = compression ? bytes_of(group) / *dense * kWhole : bytes_of(group);
        panel.points.push_back({group.label, bytes, *value, family, likely(group)});
      }
    }
    if (!panel.points.empty()) scatter.panels.push_back(std::move(panel));
  }
  if (scatter.panels.empty()) return std::nullopt;
  return scatter;
}

}  // namespace hayloft::runtime::eval
