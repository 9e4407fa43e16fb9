#include "runtime/attention/method.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "offload/error.h"
#include "runtime/attention/method_option_table.h"

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

// Without a rest by scores a step says its error at every so many tokens of a layer, and layers take turns: what it
// costs is then some percent.
constexpr std::int64_t predicted_every = 8;

bool predicts(const Step& step, const SelectionPlan& plan, const Ranking& by) {
  const bool by_scores = by.source == Ranking::Source::derived ? by.entry_tokens == 1 && !by.tail_weights.empty()
                                                               : by.source != Ranking::Source::given;
  return step.estimate != nullptr && by_scores && plan.k < plan.limit &&
         (plan.tokens + step.at.cache.layer) % predicted_every == 0 && step.at.backend.name() == "cpu";
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
  if (!make) fail("'{}' comes without the function that makes the attention method", name);
  if (!spelt) fail("'{}' cannot name an attention method: letters, digits, '_' and '-' can", name);
  const std::vector<std::string> known = method_names();
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    fail("'{}' is an attention method already; choose another name", name);
  }
  const std::scoped_lock locked(registry().lock);
  if (!registry().methods.emplace(name, std::move(make)).second) {  // by another thread, meanwhile
    fail("'{}' is an attention method already; choose another name", name);
  }
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
  SharedMethod made = make(options);
  if (made == nullptr) fail("--attn {}: the function that was registered makes no attention method", options.name);
  return made;
}

Method::Method(MethodOptions options, MethodTraits traits)
    : options_(std::move(options)), traits_(traits), by_(runtime::ranking_options(options_)) {}

std::unique_ptr<MethodState> Method::load_state(const AttentionShape&, gpu::Backend&,
                                                std::span<const std::byte>) const {
  fail("--attn {}: keeps nothing that could have been saved", options_.name);
}

void Method::require_columns(offload::ColumnFormat columns) const {
  if (in_planes(columns) || !needs_planes(options_)) return;
  fail("--attn {}: reads key columns in planes, and these are {}; use --columns planes", method_label(options_),
       name(columns));
}

void Method::require_layers(int global_layers) const {
  const std::size_t given = options_.k.by_layer().size();
  if (given <= std::max<std::size_t>(1, static_cast<std::size_t>(global_layers))) return;
  fail("--attn-k {}: has {} values, one for each global layer, and the model has {}; leave out those behind",
       options_.k.text(), given, global_layers);
}

StepPlan Method::plan(const gpu::CacheView& cache, int query_heads, const Method* kept) const {
  const Method& by = kept == nullptr ? chosen(cache, query_heads) : *kept;
  return {&by, by.plan_selection(cache, query_heads)};
}

Counters Method::attend(const Step& step) const {
  const auto [by, selection] = plan(step.at.cache, step.at.query_heads);
  return by->attend(step, selection);
}

Counters Method::count(const gpu::CacheView& cache, int query_heads) const {
  const auto [by, selection] = plan(cache, query_heads);
  return by->count_planned(cache, selection);
}

Counters Method::attend(const Step& step, const SelectionPlan& plan) const {
  if (traits_.own_search) return attend_itself(step, plan);
  Selection selection;
  if (plan.selects() && traits_.rest.by_scores() && plan.limit > 0) {
    Ranking by = ranking(step, plan);
    by.keep = plan.k < plan.limit;
    selection = step.attender.select(step, plan, by);
    step.attender.attend_with_rest(step, plan, selection, by, traits_.rest);
    return count_planned(step.at.cache, plan);
  }
  if (plan.selects()) {
    Ranking by = ranking(step, plan);
    by.keep = predicts(step, plan, by);
    selection = step.attender.select(step, plan, by);
    step.attender.attend(step, plan, selection, traits_.rest);
    if (by.keep) step.attender.predict(step, plan, selection, by, traits_.rest);
    return count_planned(step.at.cache, plan);
  }
  step.attender.attend(step, plan, selection, traits_.rest);
  return count_planned(step.at.cache, plan);
}

Ranking Method::ranking(const Step&, const SelectionPlan&) const {
  return given_positions({});
}

Counters Method::attend_itself(const Step&, const SelectionPlan&) const {
  throw std::logic_error("Method: it has a search of its own and does not attend");
}

std::int64_t Method::window(std::int64_t tokens, int /*layer*/) const {
  return std::min(options_.window.value_or(0), tokens);
}

SelectionPlan Method::plan_selection(const gpu::CacheView& cache, int query_heads) const {
  SelectionPlan plan;
  plan.tokens = cache.tokens();
  const std::int64_t k = options_.k.at(cache.layer).of(plan.tokens);
  const std::int64_t w = window(plan.tokens, cache.layer);
  plan.limit = std::min(cache.stored_tokens(), plan.tokens - w);
  plan.k = static_cast<int>(std::min(std::max<std::int64_t>(0, k - w), plan.limit));
  plan.lists = by_.lists(cache.kv_heads, query_heads);
  if (traits_.rest.kind == Rest::Kind::draw && plan.k < plan.limit) {
    const int budget = plan.k;  // in rows
    plan.k = budget / 2;
    const std::int64_t most = std::min<std::int64_t>(plan.limit - plan.k, std::numeric_limits<int>::max());
    plan.drawn = static_cast<int>(std::min(values_for_rows(cache, budget - plan.k), most));
  }
  return plan;
}

}  // namespace hayloft::runtime
