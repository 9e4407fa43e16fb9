#include "runtime/attention/method_option_table.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "index/ann/ann.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "offload/text/list.h"
#include "runtime/attention/method.h"

namespace hayloft::runtime {
namespace {

using Text = std::string_view;
using Options = MethodOptions;

int parse_int(Text text, Text named, int least) {
  const std::int64_t value = parse_count(text);
  if (value < least || value > std::numeric_limits<int>::max()) {
    fail("{} {}: must be between {} and {}", named, text, least, std::numeric_limits<int>::max());
  }
  return static_cast<int>(value);
}

double parse_share(Text text, Text named) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !(value >= 0 && value <= 1)) {
    fail("{} {}: must be a number between 0 and 1", named, text);
  }
  return value;
}

template <class T>
struct Word {
  Text word;
  T value;
};
constexpr Word<bool> switches[] = {{"on", true}, {"off", false}};
constexpr Word<bool> engines[] = {{"own", false}, {"faiss", true}};
constexpr Word<index::SelectPer> selections[] = {{"kv-head", index::SelectPer::kv_head},
                                                 {"query-head", index::SelectPer::query_head}};
constexpr Word<index::GroupRule> rules[] = {{"softmax", index::GroupRule::softmax},
                                            {"logits", index::GroupRule::logits}};
constexpr Word<index::Temperature> temperatures[] = {
    {"coverage", index::Temperature::coverage}, {"d", index::Temperature::head_dim}, {"r", index::Temperature::rank}};
constexpr Word<index::ComponentOrder> orders[] = {{"q", index::ComponentOrder::q}, {"qk", index::ComponentOrder::qk}};
constexpr Word<Rest::Kind> rests[] = {{"none", Rest::Kind::none},
                                      {"mean", Rest::Kind::mean},
                                      {"calibrated", Rest::Kind::calibrated},
                                      {"draw", Rest::Kind::draw}};
constexpr Word<int> pages[] = {{"16", 16}, {"32", 32}, {"64", 64}};

template <class T, std::size_t n>
T value_of(const Word<T> (&words)[n], Text text, Text named) {
  std::string known;
  for (const Word<T>& each : words) {
    if (text == each.word) return each.value;
    known += (known.empty() ? "" : ", ") + std::string(each.word);
  }
  fail("{} {}: must be one of {}", named, text, known);
}

template <class T, std::size_t n>
Text word_of(const Word<T> (&words)[n], T value) {
  return std::find_if(words, words + n - 1, [&](const Word<T>& each) { return each.value == value; })->word;
}

// " key=value" unless the field is what it usually is.
template <class T, class Of>
std::string unusual(Text key, T Of::*field, const Options& options) {
  static const Options usual;
  return options.*field == usual.*field ? std::string() : fmt::format(" {}={}", key, options.*field);
}

template <class T, class Of, std::size_t n>
std::string unusual(Text key, T Of::*field, const Word<T> (&words)[n], const Options& options) {
  static const Options usual;
  return options.*field == usual.*field ? std::string() : fmt::format(" {}={}", key, word_of(words, options.*field));
}

void check_rank(const Options& o, int head_dim) {
  if (o.name == "auto") return;  // which takes no more than there are
  if (o.rank < 1 || o.rank > head_dim) {
    fail("--attn-r {}: must be between 1 and the head dimension, {}", o.rank, head_dim);
  }
}

void check_bits(const Options& o, int head_dim) {
  if (o.name == "auto") return;
  const int most = head_dim * offload::plane_count;
  if (o.bits < 1 || o.bits > most) {
    fail("--attn-bits {}: must be between 1 and {}, all planes of every component", o.bits, most);
  }
}

void check_k(const Options& o, int) {
  for (const Budget& k : o.k.by_layer()) {
    if (k.count > 0 || (k.count == 0 && k.share > 0 && k.share <= 1)) continue;
    fail("--attn-k {}: must be a number of positions, or a share of the context above 0% and up to 100%",
         k.count < 0 ? fmt::format("{}", k.count) : k.text());
  }
}

void check_recent(const Options& o, int) {
  if (!(o.recent >= 0 && o.recent <= 1)) fail("--attn-recent {}: must be a number between 0 and 1", o.recent);
}

void check_window(const Options& o, int) {
  if (!o.window) return;
  if (*o.window < 0) fail("--attn-window {}: cannot be negative", *o.window);
  if (o.name == "window") return;  // check_sinks
  for (const Budget& k : o.k.by_layer()) {
    if (k.count > 0 && *o.window > k.count) {
      fail("--attn-window {}: the window is counted in --attn-k, which is only {}; raise it", *o.window, k.count);
    }
  }
}

void check_sinks(const Options& o, int) {
  if (o.sinks < 0) fail("--attn-sinks {}: cannot be negative", o.sinks);
  if (o.window == 0 && o.sinks == 0) {
    fail("--attn window: with --attn-window 0 and --attn-sinks 0 there is nothing to attend to");
  }
  for (const Budget& k : o.k.by_layer()) {
    if (k.count == 0) continue;
    if (!o.window && o.sinks >= k.count) {
      fail("--attn-sinks {}: the sinks are counted in --attn-k, which is only {}; raise it or take fewer", o.sinks,
           k.count);
    }
    if (o.window && *o.window > k.count - o.sinks) {
      fail("--attn-window {} and --attn-sinks {}: both are counted in --attn-k, which is only {}; raise it to {}",
           *o.window, o.sinks, k.count, *o.window + o.sinks);
    }
  }
}

void check_select(const Options& o, int) {
  if (o.name == "ann" && o.per == index::SelectPer::kv_head) {
    fail("--attn ann selects per query head; leave --attn-select out or use topk");
  }
}

void check_engine(const Options& o, int) {
  if (o.faiss && o.per == index::SelectPer::kv_head) {
    fail("--attn-engine faiss selects per query head; leave --attn-select out or use --attn-engine own");
  }
}

void check_probes(const Options& o, int head_dim) {
  if (o.probes < 0) fail("--attn-nprobe {}: cannot be negative", o.probes);
  if (o.probes > 0 && !index::ann_traits(o.factory, head_dim).lists) {
    fail("--attn-nprobe {}: ann:{} has no lists to look into; leave it out or take IVFn,...", o.probes, o.factory);
  }
}

void check_ef(const Options& o, int head_dim) {
  if (o.ef < 0) fail("--attn-ef {}: cannot be negative", o.ef);
  if (o.ef > 0 && !index::ann_traits(o.factory, head_dim).graph) {
    fail("--attn-ef {}: ann{} has no graph to search; leave it out or take HNSWm,...", o.ef,
         o.factory.empty() ? "" : ":" + o.factory);
  }
}

void check_rerank(const Options& o, int head_dim) {
  if (o.rerank < 0) fail("--attn-rerank {}: cannot be negative", o.rerank);
  if (o.rerank > 0 && !index::ann_traits(o.factory, head_dim).codes) {
    fail("--attn-rerank {}: ann{} has no codes and ranks by the keys themselves; leave it out or take codes, as SQ8",
         o.rerank, o.factory.empty() ? "" : ":" + o.factory);
  }
}

void check_page(const Options& o, int) {
  const auto same = [&](const Word<int>& each) { return each.value == o.page; };
  if (std::none_of(std::begin(pages), std::end(pages), same)) {
    fail("--attn-page {}: a page is 16, 32 or 64 tokens", o.page);
  }
}

// A rest needs the approximate logit of every position.
void check_rest(const Options& o, int) {
  if (o.rest.value_or(Rest::Kind::none) == Rest::Kind::none) return;
  const Text word = word_of(rests, *o.rest);
  if (!o.mean_value && *o.rest != Rest::Kind::draw) {
    fail("--attn-rest {}: is the mean value, and --mean-value off leaves it out; use one of them", word);
  }
  if (o.name == "pages") {
    fail("--attn-rest {}: pages has bounds of pages and no scores of positions; use --attn-rest none", word);
  }
  if (o.name == "ann") fail("--attn-rest {}: ann does not score every position; use --attn-rest none", word);
  if (o.name == "topk" && o.faiss) {
    fail("--attn-rest {}: Faiss gives positions and no scores; use --attn-engine own or --attn-rest none", word);
  }
}

std::string window_label(const Options& o) {
  return o.window ? fmt::format(" w={}", *o.window) : "";
}

std::string k_label(const Options& o) {
  const bool decided_by_window = o.name == "window" && o.window;
  return decided_by_window ? "" : fmt::format(" k={}", o.k.text());
}

constexpr Text all_but_dense = "sparq topk window ann flexgen h2o lowrank pages oracle planes auto";

constexpr MethodOption table[] = {
    {"factory", "", "FACTORY", "ann", "",
     "Faiss factory string, as in ann:IVF1024,Flat [IVF lists that suit the length]",
     [](Options& o, Text text, Text) { o.factory = text; },
     [](const Options& o) { return o.factory.empty() ? "" : " " + o.factory; },
     [](const Options& o, int head_dim) { index::check_ann_factory(o.factory, head_dim); }},
    {"nprobe", "", "N", "ann", "", "lists of an IVF index searched [a sixteenth of them]",
     [](Options& o, Text text, Text named) { o.probes = parse_int(text, named, 1); },
     [](const Options& o) { return unusual("nprobe", &Options::probes, o); }, check_probes},
    {"ef", "", "N", "ann", "", "candidates kept while a graph is searched [2k]",
     [](Options& o, Text text, Text named) { o.ef = parse_int(text, named, 1); },
     [](const Options& o) { return unusual("ef", &Options::ef, o); }, check_ef},
    {"rerank", "", "N", "ann", "0", "N times k positions are found by their codes and ranked by their keys; 0 is off",
     [](Options& o, Text text, Text named) { o.rerank = parse_int(text, named, 0); },
     [](const Options& o) { return unusual("rerank", &Options::rerank, o); }, check_rerank},
    {"aware", "", "on|off", "ann", "on", "whether the index is built for the queries of the prompt",
     [](Options& o, Text text, Text named) { o.query_aware = value_of(switches, text, named); },
     [](const Options& o) { return unusual("aware", &Options::query_aware, switches, o); }, nullptr},
    {"r", "", "R", "sparq lowrank auto", "16", "components (projections) that rank keys",
     [](Options& o, Text text, Text named) { o.rank = parse_int(text, named, 1); },
     [](const Options& o) { return fmt::format(" r={}", o.rank); }, check_rank},
    {"bits", "", "N", "planes auto", "32", "bit planes of K that rank keys, of all components together",
     [](Options& o, Text text, Text named) { o.bits = parse_int(text, named, 1); },
     [](const Options& o) {
       return o.name == "auto" ? unusual("bits", &Options::bits, o) : fmt::format(" bits={}", o.bits);
     },
     check_bits},
    {"by", "", "q|qk", "sparq", "q",
     "whether components are chosen by |q| alone or by |q| times the spread of K; qk needs --columns planes",
     [](Options& o, Text text, Text named) { o.order = value_of(orders, text, named); },
     [](const Options& o) { return unusual("by", &Options::order, orders, o); }, nullptr},
    {"k", "", "K,...", all_but_dense, "128",
     "positions attended, window included: a number, or a share as in 1%; a list has one for each global layer, the "
     "last "
     "for the rest",
     [](Options& o, Text text, Text named) { o.k = parse_budgets(text, named); }, k_label, check_k},
    {"window", "", "W", all_but_dense, "",
     "newest positions always attended [sparq, planes, lowrank, oracle: k/4; auto: as what it takes; window: k less "
     "the sinks; h2o: its recent "
     "share; "
     "others: 0]",
     [](Options& o, Text text, Text named) { o.window = parse_int(text, named, 0); }, window_label, check_window},
    {"sinks", "", "S", "window", "4", "first positions always attended",
     [](Options& o, Text text, Text named) { o.sinks = parse_int(text, named, 0); },
     [](const Options& o) { return o.sinks == Options().sinks ? "" : fmt::format(" s={}", o.sinks); }, check_sinks},
    {"page", "", "16|32|64", "pages", "32", "tokens of a page",
     [](Options& o, Text text, Text named) { o.page = value_of(pages, text, named); },
     [](const Options& o) { return fmt::format(" page={}", o.page); }, check_page},
    {"recent", "", "SHARE", "h2o", "0.5", "share of k that is the newest positions, 0 to 1",
     [](Options& o, Text text, Text named) { o.recent = parse_share(text, named); },
     [](const Options& o) { return o.recent == Options().recent ? "" : fmt::format(" recent={:g}", o.recent); },
     check_recent},
    {"seed", "", "N", "lowrank sparq planes topk oracle", "1",
     "seed of the random projections, and of --attn-rest draw",
     [](Options& o, Text text, Text) { o.seed = static_cast<std::uint64_t>(parse_count(text)); },
     [](const Options& o) { return unusual("seed", &Options::seed, o); }, nullptr},
    {"mean", "--mean-value", "on|off", "sparq planes lowrank oracle auto", "on",
     "whether the mean value stands in for what was not attended",
     [](Options& o, Text text, Text named) { o.mean_value = value_of(switches, text, named); },
     [](const Options& o) { return unusual("mean", &Options::mean_value, switches, o); }, nullptr},
    {"rest", "", "none|mean|calibrated|draw", "sparq planes topk pages lowrank oracle ann", "",
     "what stands in for what was not attended: nothing, the mean value by the approximate or the calibrated share, or "
     "values drawn by it [sparq, planes, lowrank, oracle: mean; others: none]",
     [](Options& o, Text text, Text named) { o.rest = value_of(rests, text, named); },
     [](const Options& o) { return o.rest ? fmt::format(" rest={}", word_of(rests, *o.rest)) : ""; }, check_rest},
    {"tau", "", "coverage|d|r", "sparq planes lowrank auto", "coverage",
     "softmax temperature of the approximate scores",
     [](Options& o, Text text, Text named) { o.temperature = value_of(temperatures, text, named); },
     [](const Options& o) { return unusual("tau", &Options::temperature, temperatures, o); }, nullptr},
    {"group", "", "softmax|logits", "sparq topk flexgen lowrank pages oracle planes auto", "softmax",
     "whether the query heads of a KV head rank positions by their summed softmaxes or logits",
     [](Options& o, Text text, Text named) { o.rule = value_of(rules, text, named); },
     [](const Options& o) { return unusual("group", &Options::rule, rules, o); }, nullptr},
    {"engine", "--topk-engine", "own|faiss", "topk", "own", "which search finds the positions",
     [](Options& o, Text text, Text named) { o.faiss = value_of(engines, text, named); },
     [](const Options& o) -> std::string { return o.faiss ? " faiss" : ""; }, check_engine},
    {"select", "", "kv-head|query-head", "topk ann lowrank pages oracle", "",
     "one selection per KV head or per query head [topk, ann: query-head; others: kv-head]",
     [](Options& o, Text text, Text named) { o.per = value_of(selections, text, named); },
     [](const Options& o) { return o.per ? fmt::format(" select={}", word_of(selections, *o.per)) : ""; },
     check_select},
};

}  // namespace

std::string_view name(index::GroupRule rule) {
  return word_of(rules, rule);
}

std::string_view name(index::SelectPer per) {
  return word_of(selections, per);
}

std::string_view name(index::ComponentOrder order) {
  return word_of(orders, order);
}

std::string_view name(Rest::Kind rest) {
  return word_of(rests, rest);
}

std::string_view name(index::Temperature temperature) {
  return word_of(temperatures, temperature);
}

std::span<const MethodOption> method_option_table() {
  return table;
}

const MethodOption* find_method_option(std::string_view key) {
  const auto found = std::find_if(std::begin(table), std::end(table), [&](const auto& o) { return o.key == key; });
  return found == std::end(table) ? nullptr : found;
}

std::string flag(const MethodOption& option) {
  return fmt::format("--attn-{}", option.key);
}

bool uses(std::string_view method, const MethodOption& option) {
  if (is_registered_method(method)) return option.key == "k" || option.key == "window" || option.key == "select";
  const std::vector<std::string_view> methods = split_list(option.methods, ' ');
  return std::find(methods.begin(), methods.end(), method) != methods.end();
}

std::string idle_reason(const MethodOptions& options, const MethodOption& option) {
  if (option.key == "seed" && options.name != "lowrank" && rest_of(options).kind != Rest::Kind::draw) {
    return "it is the seed of rest=draw";
  }
  if (option.key == "group" && ranking_options(options).per_query_head()) {
    return fmt::format("{} ranks for each query head alone{}", options.name,
                       options.faiss ? "" : "; select=kv-head ranks for a group");
  }
  if (option.key == "recent" && options.window) return "window says how many positions are the newest";
  return "";
}

void read_method_option(const MethodOption& option, MethodOptions& options, std::string_view text,
                        std::string_view named) {
  try {
    option.read(options, text, named);
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (message.starts_with(named)) throw;
    fail("{}: {}", named, message);
  }
}

void check_method_options(const MethodOptions& options, int head_dim) {
  for (const MethodOption& option : table) {
    if (option.check && uses(options.name, option)) option.check(options, head_dim);
  }
}

}  // namespace hayloft::runtime
