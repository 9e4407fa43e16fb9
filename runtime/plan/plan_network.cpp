#include "runtime/plan/plan_network.h"

#include <algorithm>
#include <initializer_list>

#include "runtime/cluster/candidates.h"
#include "runtime/cluster/merge.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/cluster/rank_rest.h"

namespace hayloft::runtime::plan {
namespace {

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [&](const char* each) { return name == each; });
}

// The ranks' searches count what they have looked at in three numbers.
constexpr std::uint64_t ann_note_bytes = 3 * sizeof(std::uint64_t);

// Adds what a global layer takes, as cluster::rank_attender() sends it.
void add_layer(const ModelConfig& config, const StepPlan& planned, const gpu::CacheView& cache, int ranks,
               NetworkStep& step) {
  const Method& method = *planned.by;
  const MethodOptions& options = method.options();
  if (options.name == "h2o") return;
  step.gathered += 1;
  step.bytes += cluster::AttentionParts::bytes(config.query_heads, config.head_dim);
  if (is_one_of(options.name, {"dense", "window"})) return;
  const bool with_alpha = is_one_of(options.name, {"sparq", "planes", "lowrank", "oracle"});
  const index::RankingOptions& by = method.ranking_options();
  const int lists = by.lists(config.kv_heads, config.query_heads);
  const int heads = config.query_heads / lists;
  const bool by_softmax = heads > 1 && by.rule == index::GroupRule::softmax;
  const int entry = options.name == "pages" ? options.page : 1;
  const std::int64_t tokens = cache.tokens();
  const std::int64_t window = method.window(tokens, cache.layer);
  const std::int64_t limit = std::min(cache.stored_tokens(), tokens - window) / entry;
  const std::int64_t wanted = std::max<std::int64_t>(0, options.k.at(cache.layer).of(tokens) - window);
  const std::int64_t entries = wanted == 0 ? 0 : std::max<std::int64_t>(1, wanted / entry);
  const Rest rest = rest_of(options);
  const SelectionPlan& plan = planned.selection;  // a draw takes some of its rows
  const auto k = rest.by_scores() ? plan.k : static_cast<int>(std::min(entries, limit));
  if (rest.by_scores() && limit > 0 && k < limit) {
    const bool lines = is_one_of(options.name, {"sparq", "planes", "lowrank"});
    const cluster::RestMessages messages =
        cluster::rest_messages(plan, config.query_heads, config.head_dim, lines, rest);
    step.gathered += messages.gathered;
    step.bytes += messages.bytes;
  }
  if (k == 0 && !with_alpha) return;
  step.gathered += 1;
  step.bytes += cluster::Candidates::bytes(lists, heads, k);
  if (options.name == "ann") step.bytes += ann_note_bytes;
  if (by_softmax && k > 0) {
    step.further += 1;
    step.further_bytes +=
        cluster::Candidates::bytes(lists, heads, cluster::left_out_at_a_time(k, ranks)) + sizeof(float);
  }
  if (by_softmax || with_alpha) step.bytes += 4 * sizeof(float) * static_cast<std::uint64_t>(config.query_heads);
}

}  // namespace

std::optional<NetworkStep> network_step(const ModelConfig& config, const Method& method, gpu::CacheView cache,
                                        int ranks) {
  if (ranks == 1) return std::nullopt;
  cluster::require_over_ranks(method.options());
  NetworkStep step;
  for (cache.layer = 0; cache.layer < config.global_layers(); ++cache.layer) {
    add_layer(config, method.plan(cache, config.query_heads), cache, ranks, step);
  }
  step.messages = step.gathered + 1;
  return step;
}

double network_ms(const NetworkStep& step, const Network& network, int ranks) {
  const double rounds = network_rounds(ranks);
  const double bits = 8.0 * static_cast<double>(step.bytes + step.further_bytes) * (ranks - 1);
  return static_cast<double>(step.messages + step.further) * rounds * network.latency_us / 1e3 +
         bits / (network.gigabits_per_second * 1e6);
}

}  // namespace hayloft::runtime::plan
