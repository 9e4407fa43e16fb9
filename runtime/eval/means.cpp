#include "runtime/eval/means.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/eval/json.h"

namespace hayloft::runtime::eval {
namespace {

std::string answer_label(const EvalRow& row, bool several_ways) {
  return several_ways ? fmt::format("{}, read {}", method_label(row.attn), row.prefill) : method_label(row.attn);
}

bool read_in_several_ways(const std::vector<EvalRow>& rows) {
  return std::ranges::any_of(rows, [&](const EvalRow& row) { return row.prefill != rows.front().prefill; });
}

}  // namespace

std::string answer_key(const EvalRow& row) {
  return row.prefill + " " + method_key(row.attn);
}

std::vector<Group> group_rows(const std::vector<EvalRow>& rows, bool by_task, std::optional<std::int64_t> ctx_size) {
  std::vector<Group> groups;
  const bool several_ways = read_in_several_ways(rows);
  for (const EvalRow& row : rows) {
    if (ctx_size && row.ctx_size != *ctx_size) continue;
    const std::string task = by_task ? row.task : "";
    const std::string method = answer_key(row);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& each) {
      return each.task == task && each.ctx_size == row.ctx_size && each.method == method;
    });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), Group{});
      group->task = task;
      group->ctx_size = row.ctx_size;
      group->method = method;
      group->reading = row.prefill;
      group->label = answer_label(row, several_ways);
      group->referred = row.prefill == rows.front().prefill;
      group->dense = row.attn.name == "dense" && group->referred;
      group->measure = row.measure;
    }
    group->add(row);
  }
  return groups;
}

std::vector<MethodName> methods_of(const std::vector<EvalRow>& rows) {
  std::vector<MethodName> methods;
  const bool several_ways = read_in_several_ways(rows);
  for (const EvalRow& row : rows) {
    const std::string key = answer_key(row);
    const auto same = [&](const MethodName& each) { return each.key == key; };
    if (std::none_of(methods.begin(), methods.end(), same)) methods.push_back({key, answer_label(row, several_ways)});
  }
  return methods;
}

std::optional<double> mean_over_tasks(const std::vector<Group>& by_task, const std::string& method,
                                      std::int64_t ctx_size, Measure measure) {
  Mean mean;
  std::set<std::string> tasks;
  for (const Group& group : by_task) {
    if (group.ctx_size != ctx_size || group.measure != measure) continue;
    tasks.insert(group.task);
    if (group.method == method) mean.add(group.mean_score());
  }
  return mean.count == static_cast<int>(tasks.size()) ? mean.value() : std::nullopt;
}

}  // namespace hayloft::runtime::eval
