#include "runtime/plan/plan_prefill.h"

#include <algorithm>

#include "gpu/cuda_sparse.h"
#include "gpu/sparse_choice.h"
#include "runtime/decode/prefill_order.h"

namespace hayloft::runtime::plan {
namespace {

using Strategy = PrefillOptions::Kind;
using Order = PrefillOptions::Order;

// Keys seen by S queries, the p-th of which sees min(p, most).
double keys_seen(double S, double most) {
  if (S <= most) return S * (S + 1) / 2;
  return most * (most + 1) / 2 + (S - most) * most;
}

double product_flops_per_token(const ModelConfig& config) {
  const double hidden = config.hidden_size;
  const gpu::DeltaShape& delta = config.delta;
  const double recurrent =
      hidden * (static_cast<double>(delta.channels() + 2 * delta.values()) + 2 * delta.value_heads) +
      3 * static_cast<double>(delta.state_floats());
  double all = 3 * hidden * config.intermediate_size * (config.layers - 1);
  for (int layer = 0; layer < config.layers; ++layer) {
    const bool last = layer + 1 == config.layers;  // it stops at K and V
    const LayerKind kind = config.kind(layer);
    const LayerHeads heads = config.heads(layer);
    const double query = static_cast<double>(config.query_heads) * heads.dim;
    const double matrices = config.keys_as_values && kind == LayerKind::global ? 1 : 2;  // of K and V
    const double kv = matrices * static_cast<double>(heads.width());
    const double attention = hidden * (2 * query + kv + (config.attention_gate ? query : 0));
    all += kind == LayerKind::recurrent ? recurrent : last ? hidden * kv : attention;
  }
  return 2 * all;
}

// Keys that the queries of one global layer see, masked parts of a window's tiles included.
double global_keys(const PrefillOptions& prefill, double S, double tile) {
  if (prefill.kind == Strategy::exact) return keys_seen(S, S);
  // By a share of the mass it depends on the text how many are read: all at most.
  if (prefill.kind == Strategy::sparse) {
    return keys_seen(S, S) * (prefill.sparse.density > 0 ? prefill.sparse.density : 1);
  }
  const auto window = static_cast<double>(prefill.window);
  if (prefill.kind == Strategy::window) return keys_seen(S, window + static_cast<double>(prefill.sinks) + tile);
  return keys_seen(S, window + static_cast<double>(prefill.k.of(static_cast<std::int64_t>(S))));
}

// Returns the keys whose attention costs as much as what `sparse` scores to choose: of every block of queries some,
// which choose, for a fidelity as many that stop, and of some blocks as many again, which measure; scores are half of
// attention.
double scored_keys(const PlanRequest& request, const PrefillOptions& prefill, double S) {
  if (prefill.kind != Strategy::sparse) return 0;
  const int stopping = prefill.sparse.fidelity > 0 ? 1 : 0;
  const double asked = gpu::sparse_sampled_tokens * (1 + stopping + 1.0 / gpu::sparse_measured_every);
  const int times = request.device_budget > 0 ? gpu::cuda_score_passes : 1;
  return keys_seen(S, S) * times * asked / gpu::sparse_block_tokens(request.config.group_size()) / 2;
}

// Returns what every query of `topk` searches: the columns of all positions before its window.
double searched_bytes(const ModelConfig& config, const PrefillOptions& prefill, double S) {
  if (prefill.kind != Strategy::topk) return 0;
  const double before = std::max(0.0, S - static_cast<double>(prefill.window));
  return before * (before + 1) / 2 * 2 * config.head_dim * config.kv_heads * attending_layers(config);
}

double prefill_seconds(const PlanRequest& request, const PlannedPrefill& planned, const PrefillOptions& prefill,
                       double expert_bytes, const MachineProfile& profile) {
  const AttentionRates rates = profile.rates(request.config.head_dim, request.config.group_size());
  return planned.products / profile.matmul / 1e9 + planned.attention / rates.causal / 1e9 +
         expert_bytes / profile.link_to_device.value_or(profile.near_read) / 1e9 +
         searched_bytes(request.config, prefill, static_cast<double>(request.tokens)) /
             rates.topk_scan(request.session.cache.columns) / 1e9;
}

// The share of the tensor cores' published rate that a prompt's kernels are assumed to reach. On an H100 products
// reached 0.67 of it, attention 0.32 (docs/internals/cuda.md).
constexpr double kTensorShare = 0.5;

std::optional<double> seconds_on_card(const PlanRequest& request, const PlannedPrefill& planned) {
  if (!request.card || request.card->tensor_rate == 0 || planned.options.kind == Strategy::topk) return std::nullopt;
  return std::max((planned.products + planned.attention) / (request.card->tensor_rate * 1e12 * kTensorShare),
                  planned.moved / (request.card->link_rate * 1e9));
}

PlannedPrefill plan_strategy(const PlanRequest& request, const PrefillOptions& prefill, const std::string& name,
                             const MachineProfile* profile) {
  constexpr int block_rows = 256;  // tokens times query heads of a group that share a tile of keys
  const ModelConfig& config = request.config;
  const auto S = static_cast<double>(request.tokens);
  const double tile = static_cast<double>(block_rows) / config.group_size();
  const double global = attending_layers(config) * (global_keys(prefill, S, tile) + scored_keys(request, prefill, S));
  // Counts those of keys, of all query heads each. Kernels of wide heads compute scores twice (docs/internals/cuda.md).
  double components = global * config.head_dim * (request.device_budget > 0 && config.head_dim > 256 ? 1.5 : 1.0);
  for (int layer = 0; layer + 1 < config.layers; ++layer) {
    const std::int64_t window = config.sliding_window[static_cast<std::size_t>(layer)];
    if (window == 0) continue;
    const LayerHeads heads = config.sliding_heads();
    const double sliding_tile = static_cast<double>(block_rows) * heads.kv / config.query_heads;
    components += keys_seen(S, static_cast<double>(window) + sliding_tile) * heads.dim;
  }
  PlannedPrefill planned;
  planned.strategy = name;
  planned.options = prefill;
  planned.products = S * product_flops_per_token(config);
  planned.attention = components * config.query_heads * 4;
  SessionOptions session = request.session;
  session.prefill = prefill;
  const ExpertPlacement experts = placed_experts(request);
  const auto moved = [&](const ExpertPlacement& placement) {
    const PrefillTraffic traffic = prefill_traffic(config, session, request.tokens, request.weights, placement);
    return prefill.order == Order::layer ? traffic.layer_major : traffic.chunk_major;
  };
  planned.moved = moved(experts);
  // Neither a profile of a device nor a card has a rate of the processor's products, which those of experts near it
  // are.
  if (experts.place == ExpertPlace::near && !experts.prompts_over_link) return planned;
  if (profile) planned.seconds = prefill_seconds(request, planned, prefill, planned.moved - moved({}), *profile);
  planned.card_seconds = seconds_on_card(request, planned);
  return planned;
}

}  // namespace

std::vector<PlannedPrefill> plan_prefill(const PlanRequest& request, const MachineProfile* profile) {
  std::vector<PlannedPrefill> all;
  const auto add = [&](Strategy kind, Order order, const std::string& loop) {
    PrefillOptions prefill = request.session.prefill;
    prefill.kind = kind;
    prefill.order = order;
    all.push_back(plan_strategy(request, prefill, prefill_label(prefill) + loop, profile));
  };
  const std::string chunk = ", chunk by chunk", layer = ", layer by layer";
  add(Strategy::exact, Order::chunk, chunk);
  add(Strategy::exact, Order::layer, layer);
  add(Strategy::window, Order::chunk, "");
  add(Strategy::topk, Order::chunk, "");
  add(Strategy::sparse, Order::chunk, chunk);
  add(Strategy::sparse, Order::layer, layer);
  return all;
}

}  // namespace hayloft::runtime::plan
