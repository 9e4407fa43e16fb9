#include "runtime/attention/method.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "offload/error.h"
#include "runtime/attention/method_option_table.h"
#include "runtime/attention/over_ranks.h"
#include "runtime/attention/selection.h"

namespace hayloft::runtime {
namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Method> (*make)(const MethodOptions&);
};
constexpr Entry methods[] = {{"dense", make_dense},   {"sparq", make_sparq},     {"topk", make_topk},
                             {"window", make_window}, {"ann", make_ann},         {"flexgen", make_flexgen},
                             {"h2o", make_h2o},       {"lowrank", make_lowrank}, {"pages", make_pages},
                             {"oracle", make_oracle}, {"planes", make_planes}};
constexpr const char* automatic = "auto";

using MakeMethod = std::function<std::unique_ptr<Method>(const MethodOptions&)>;

struct Registry {
  std::mutex lock;
  std::map<std::string, MakeMethod, std::less<>> methods;
};
Registry& registry() {
  static Registry all;
  return all;
}

MakeMethod find(std::string_view name) {
  for (const Entry& entry : methods) {
    if (name == entry.name) return entry.make;
  }
  {
    const std::scoped_lock locked(registry().lock);
    const auto found = registry().methods.find(name);
    if (found != registry().methods.end()) return found->second;
  }
  fail("--attn {}: unknown attention method; one of {}", name, fmt::join(method_names(), ", "));
}

}  // namespace

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Entry& entry : methods) names.emplace_back(entry.name);
  names.emplace_back(automatic);
  const std::scoped_lock locked(registry().lock);
  for (const auto& [name, make] : registry().methods) names.push_back(name);
  return names;
}

void register_method(const std::string& name, MakeMethod make) {
  const bool spelt = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!spelt) fail("'{}' cannot name an attention method: letters, digits, '_' and '-' can", name);
  const std::vector<std::string> known = method_names();
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    fail("'{}' is an attention method already; choose another name", name);
  }
  const std::scoped_lock locked(registry().lock);
  registry().methods.emplace(name, std::move(make));
}

bool is_registered_method(std::string_view name) {
  const std::scoped_lock locked(registry().lock);
  return registry().methods.contains(name);
}

SharedMethod make_method(const MethodOptions& options, int head_dim) {
  if (options.name == automatic) {
    check_method_options(options, head_dim);
    return make_auto(options, head_dim);
  }
  const MakeMethod make = find(options.name);
  check_method_options(options, head_dim);
  return make(options);
}

std::unique_ptr<MethodState> Method::load_state(const AttentionShape&, gpu::Backend&,
                                                std::span<const std::byte>) const {
  fail("--attn {}: keeps nothing that could have been saved", options_.name);
}

void Method::require_columns(offload::ColumnFormat columns) const {
  if (in_planes(columns) || !needs_planes(options_)) return;
  fail("--attn {}: reads key columns in planes, and these are {}; use --columns planes", method_label(options_),
       name(columns));
}

void Method::attend(const Step& step, const float* q, float* out) const {
  const Method& by = chosen(step.cache, step.query_heads);
  const SelectionPlan plan = by.plan_selection(step.cache, step.query_heads);
  step.counters += by.attend_planned(step, plan, q, out);
}

Counters Method::count(const gpu::CacheView& cache, int query_heads) const {
  const Method& by = chosen(cache, query_heads);
  return by.count_planned(cache, by.plan_selection(cache, query_heads));
}

std::optional<gpu::Attended> Method::ranges(const gpu::CacheView& cache, int query_heads) const {
  const Method& by = chosen(cache, query_heads);
  if (by.selects()) return {};
  return by.plan_selection(cache, query_heads).attended();
}

std::int64_t Method::window(std::int64_t tokens, int /*layer*/) const {
  return std::min(options_.window.value_or(0), tokens);
}

Counters Method::attend_planned(const Step& step, const SelectionPlan& plan, const float* q, float* out) const {
  if (step.ranks != nullptr) {
    attend_over_ranks(step, plan, q, {}, nullptr, out);
  } else {
    attend_positions(step, plan, q, nullptr, nullptr, out);
  }
  return count_planned(step.cache, plan);
}

SelectionPlan Method::plan_selection(const gpu::CacheView& cache, int query_heads) const {
  SelectionPlan plan;
  plan.tokens = cache.tokens();
  const std::int64_t k = options_.k.at(cache.layer).of(plan.tokens);
  const std::int64_t w = window(plan.tokens, cache.layer);
  plan.limit = std::min(cache.stored_tokens(), plan.tokens - w);
  plan.k = static_cast<int>(std::min(std::max<std::int64_t>(0, k - w), plan.limit));
  plan.lists = selection_per() == index::SelectPer::kv_head ? cache.kv_heads : query_heads;
  return plan;
}

}  // namespace hayloft::runtime
