#include "runtime/attention/method_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>

#include "offload/error.h"
#include "offload/format.h"

namespace hayloft::runtime {
namespace {

int parse_int(std::string_view text, std::string_view option, int least) {
  const std::int64_t value = parse_count(text);
  if (value < least || value > std::numeric_limits<int>::max()) {
    fail("{} {}: must be between {} and {}", option, text, least, std::numeric_limits<int>::max());
  }
  return static_cast<int>(value);
}

double parse_share(std::string_view text, std::string_view option) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !(value >= 0 && value <= 1)) {
    fail("{} {}: must be a number between 0 and 1", option, text);
  }
  return value;
}

template <class T>
struct Choice {
  std::string_view word;
  T value;
};
constexpr Choice<bool> switches[] = {{"on", true}, {"off", false}};
constexpr Choice<index::SelectPer> selections[] = {{"kv-head", index::SelectPer::kv_head},
                                                   {"query-head", index::SelectPer::query_head}};
constexpr Choice<index::GroupRule> rules[] = {{"softmax", index::GroupRule::softmax},
                                              {"logits", index::GroupRule::logits}};
constexpr Choice<gpu::Temperature> temperatures[] = {
    {"coverage", gpu::Temperature::coverage}, {"d", gpu::Temperature::head_dim}, {"r", gpu::Temperature::rank}};

template <class T, std::size_t n>
T choose(const Choice<T> (&choices)[n], std::string_view text, std::string_view option) {
  std::string words;
  for (const Choice<T>& choice : choices) {
    if (text == choice.word) return choice.value;
    words += (words.empty() ? "" : ", ") + std::string(choice.word);
  }
  fail("{} {}: must be one of {}", option, text, words);
}

// An option behind a method's name; `option` is how messages call it.
struct Key {
  std::string_view name;
  void (*read)(MethodOptions& options, std::string_view value, std::string_view option);
};
constexpr Key keys[] = {
    {"r", [](MethodOptions& o, std::string_view v, std::string_view n) { o.rank = parse_int(v, n, 0); }},
    {"k", [](MethodOptions& o, std::string_view v, std::string_view n) { o.k = parse_budgets(v, n); }},
    {"window", [](MethodOptions& o, std::string_view v, std::string_view) { o.window = parse_count(v); }},
    {"sinks", [](MethodOptions& o, std::string_view v, std::string_view) { o.sinks = parse_count(v); }},
    {"mean", [](MethodOptions& o, std::string_view v, std::string_view n) { o.mean_value = choose(switches, v, n); }},
    {"group", [](MethodOptions& o, std::string_view v, std::string_view n) { o.rule = choose(rules, v, n); }},
    {"select", [](MethodOptions& o, std::string_view v, std::string_view n) { o.per = choose(selections, v, n); }},
    {"tau",
     [](MethodOptions& o, std::string_view v, std::string_view n) { o.temperature = choose(temperatures, v, n); }},
    {"nprobe", [](MethodOptions& o, std::string_view v, std::string_view n) { o.probes = parse_int(v, n, 1); }},
    {"ef", [](MethodOptions& o, std::string_view v, std::string_view n) { o.ef = parse_int(v, n, 1); }},
    {"rerank", [](MethodOptions& o, std::string_view v, std::string_view n) { o.rerank = parse_int(v, n, 0); }},
    {"aware", [](MethodOptions& o, std::string_view v, std::string_view n) { o.query_aware = choose(switches, v, n); }},
    {"page", [](MethodOptions& o, std::string_view v, std::string_view n) { o.page = parse_int(v, n, 1); }},
    {"recent", [](MethodOptions& o, std::string_view v, std::string_view n) { o.recent = parse_share(v, n); }},
    {"seed", [](MethodOptions& o, std::string_view v,
                std::string_view) { o.seed = static_cast<std::uint64_t>(parse_count(v)); }},
};

bool is_method(std::string_view name) {
  const std::vector<std::string> names = method_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

std::int64_t Budget::of(std::int64_t tokens) const {
  const std::int64_t wanted =
      count > 0 ? count : static_cast<std::int64_t>(std::ceil(share * static_cast<double>(tokens)));
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, tokens));
}

std::string Budget::text() const {
  return count > 0 ? fmt::format("{}", count) : fmt::format("{:g}%", share * 100);
}

Budget parse_budget(std::string_view text, std::string_view option) {
  if (!text.empty() && text.back() == '%') {
    double percent = 0;
    const char* end = text.data() + text.size() - 1;
    const auto [stop, error] = std::from_chars(text.data(), end, percent);
    if (error != std::errc() || stop != end || !(percent > 0 && percent <= 100)) {
      fail("{} {}: a share is written as a number above 0 and up to 100 followed by %", option, text);
    }
    return {0, percent / 100};
  }
  const std::int64_t count = parse_count(text);
  if (count < 1) fail("{} {}: at least one position must be attended", option, text);
  return {count, 0};
}

Budgets::Budgets(std::vector<Budget> by_layer) : by_layer_(std::move(by_layer)) {
  if (by_layer_.empty()) by_layer_.emplace_back();
}

const Budget& Budgets::at(int layer) const {
  return by_layer_[std::min(static_cast<std::size_t>(layer), by_layer_.size() - 1)];
}

void Budgets::set(int layer, Budget budget) {
  // The layers behind it keep what they have.
  const auto needed = static_cast<std::size_t>(layer) + 2;
  if (by_layer_.size() < needed) by_layer_.resize(needed, by_layer_.back());
  by_layer_[static_cast<std::size_t>(layer)] = budget;
}

std::string Budgets::text() const {
  std::string text;
  for (const Budget& budget : by_layer_) text += (text.empty() ? "" : ",") + budget.text();
  return text;
}

Budgets parse_budgets(std::string_view text, std::string_view option) {
  std::vector<Budget> by_layer;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    by_layer.push_back(parse_budget(text.substr(begin, comma - begin), option));
    begin = comma + 1;
  }
  return Budgets(std::move(by_layer));
}

MethodOptions parse_method(std::string_view text, const MethodOptions& defaults) {
  MethodOptions options = defaults;
  const std::size_t colon = text.find(':');
  options.name = std::string(text.substr(0, colon));
  if (!is_method(options.name)) {
    fail("--attn {}: unknown attention method; one of {}", options.name, fmt::join(method_names(), ", "));
  }
  bool first = true;
  for (std::size_t at = colon; at != std::string_view::npos; first = false) {
    const std::size_t next = text.find(':', at + 1);
    const std::string_view pair = text.substr(at + 1, next == std::string_view::npos ? next : next - at - 1);
    at = next;
    const std::size_t equals = pair.find('=');
    if (first && options.name == "ann" && equals == std::string_view::npos) {
      options.factory = std::string(pair);
      continue;
    }
    const auto key =
        std::find_if(std::begin(keys), std::end(keys), [&](const Key& k) { return k.name == pair.substr(0, equals); });
    if (key == std::end(keys)) {
      std::string known;
      for (const Key& k : keys) known += (known.empty() ? "" : ", ") + std::string(k.name);
      fail("--attn {}: unknown option '{}'; one of {}, written as {}:k=128", text, pair.substr(0, equals), known,
           options.name);
    }
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1);
    key->read(options, value, fmt::format("--attn {}: {}", options.name, key->name));
  }
  return options;
}

std::vector<std::string> split_methods(std::string_view text) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view piece = text.substr(begin, comma - begin);
    const bool goes_on =
        !items.empty() && items.back().find(':') != std::string::npos && !is_method(piece.substr(0, piece.find(':')));
    if (goes_on) {
      items.back().append(",").append(piece);
    } else {
      items.emplace_back(piece);
    }
    begin = comma + 1;
  }
  return items;
}

bool has_rank(const MethodOptions& method) {
  return method.name == "sparq" || method.name == "lowrank";
}

index::SelectPer selects_per(const MethodOptions& method) {
  const bool per_query_head = method.name == "topk" || method.name == "ann";
  return method.per.value_or(per_query_head ? index::SelectPer::query_head : index::SelectPer::kv_head);
}

std::string method_label(const MethodOptions& method) {
  const MethodOptions usual;
  std::string label = method.name;
  if (method.name == "dense") return label;
  if (method.name == "ann") {
    if (!method.factory.empty()) label += " " + method.factory;
    if (method.probes > 0) label += fmt::format(" nprobe={}", method.probes);
    if (method.ef > 0) label += fmt::format(" ef={}", method.ef);
    if (method.rerank > 0) label += fmt::format(" rerank={}", method.rerank);
    if (!method.query_aware) label += " aware=off";
  }
  if (has_rank(method)) label += fmt::format(" r={}", method.rank);
  if (method.name != "window" || !method.window) label += fmt::format(" k={}", method.k.text());
  if (method.window) label += fmt::format(" w={}", *method.window);
  if (method.name == "window" && method.sinks != usual.sinks) label += fmt::format(" s={}", method.sinks);
  if (method.name == "pages") label += fmt::format(" page={}", method.page);
  if (method.name == "h2o" && method.recent != usual.recent) label += fmt::format(" recent={:g}", method.recent);
  if (method.name == "lowrank" && method.seed != usual.seed) label += fmt::format(" seed={}", method.seed);
  if ((has_rank(method) || method.name == "oracle") && !method.mean_value) label += " mean=off";
  if (has_rank(method) && method.temperature != usual.temperature) {
    label += method.temperature == gpu::Temperature::rank ? " tau=r" : " tau=d";
  }
  const bool ranks_by_group = method.name != "window" && method.name != "h2o" && method.name != "ann";
  if (ranks_by_group && method.rule != usual.rule) label += " group=logits";
  if (method.name == "topk" && method.faiss) label += " faiss";
  if (method.per) label += *method.per == index::SelectPer::kv_head ? " select=kv-head" : " select=query-head";
  return label;
}

}  // namespace hayloft::runtime
