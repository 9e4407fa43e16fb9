#include "runtime/attention/method_options.h"

#include <algorithm>

#include "offload/error.h"
#include "offload/text/list.h"
#include "runtime/attention/method_option_table.h"

namespace hayloft::runtime {
namespace {

bool is_method(std::string_view name) {
  const std::vector<std::string> names = method_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The keys that a method takes, as messages list them.
std::string keys_of(std::string_view method) {
  std::string keys;
  for (const MethodOption& option : method_option_table()) {
    if (uses(method, option)) keys += fmt::format("{}{}", keys.empty() ? "" : ", ", option.key);
  }
  return keys.empty() ? "no options" : keys;
}

const MethodOption& option_of(std::string_view method, std::string_view key, std::string_view written) {
  const MethodOption* const option = find_method_option(key);
  if (!option) fail("--attn {}: unknown option '{}'; {} takes {}", written, key, method, keys_of(method));
  if (!uses(method, *option)) {
    fail("--attn {}: {} does not use '{}'; it takes {}", written, method, key, keys_of(method));
  }
  return *option;
}

}  // namespace

MethodOptions parse_method(std::string_view text, const MethodOptions& defaults) {
  const std::vector<std::string_view> parts = split_list(text, ':');
  MethodOptions options = defaults;
  options.name = parts.front();
  if (!is_method(options.name)) {
    fail("--attn {}: unknown attention method; one of {}", options.name, fmt::join(method_names(), ", "));
  }
  std::vector<const MethodOption*> named;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t equals = parts[i].find('=');
    const bool bare = equals == std::string_view::npos;
    // ann:IVF64,Flat is short for ann:factory=IVF64,Flat.
    const bool factory = bare && i == 1 && options.name == "ann";
    const std::string_view key = factory ? "factory" : parts[i].substr(0, equals);
    const std::string_view value = factory ? parts[i] : bare ? std::string_view() : parts[i].substr(equals + 1);
    const MethodOption& option = option_of(options.name, key, text);
    if (std::ranges::count(named, &option)) fail("--attn {}: '{}' stands twice", text, option.key);
    named.push_back(&option);
    read_method_option(option, options, value, fmt::format("--attn {}: {}", options.name, key));
  }
  for (const MethodOption* option : named) {
    const std::string idle = idle_reason(options, *option);
    if (!idle.empty()) fail("--attn {}: '{}' has no effect: {}", text, option->key, idle);
  }
  return options;
}

std::vector<std::string> split_methods(std::string_view text) {
  std::vector<std::string> items;
  for (const std::string_view piece : split_list(text)) {
    const bool goes_on =
        !items.empty() && items.back().find(':') != std::string::npos && !is_method(piece.substr(0, piece.find(':')));
    if (goes_on) {
      items.back().append(",").append(piece);
    } else {
      items.emplace_back(piece);
    }
  }
  return items;
}

bool has_rank(const MethodOptions& method) {
  return uses(method.name, *find_method_option("r"));
}

bool needs_planes(const MethodOptions& method) {
  return ranking_options(method).needs_planes();
}

index::RankingOptions ranking_options(const MethodOptions& method) {
  const auto uses_option = [&](const char* key) { return uses(method.name, *find_method_option(key)); };
  const bool planes = method.name == "planes";
  index::RankingOptions by;
  if (uses_option("r")) by.rank = method.rank;
  if (planes) by.bits = method.bits;
  if (uses_option("by")) by.order = method.order;
  if (planes) by.order = index::ComponentOrder::qk;
  if (uses_option("tau")) by.temperature = method.temperature;
  if (uses_option("group")) by.rule = method.rule;
  const bool per_query_head = method.name == "topk" || method.name == "ann";
  by.per = per_query_head ? index::SelectPer::query_head : index::SelectPer::kv_head;
  if (uses_option("select") && method.per) by.per = method.per;
  return by;
}

Rest rest_of(const MethodOptions& method) {
  const auto uses_option = [&](const char* key) { return uses(method.name, *find_method_option(key)); };
  if (uses_option("rest") && method.rest) return {*method.rest, method.seed};
  if (uses_option("mean") && method.mean_value) return {Rest::Kind::mean};
  return {};
}

std::string method_label(const MethodOptions& method) {
  std::string label = method.name;
  for (const MethodOption& option : method_option_table()) {
    if (uses(method.name, option)) label += option.label(method);
  }
  return label;
}

}  // namespace hayloft::runtime
