#include "runtime/plan/plan.h"

#include <algorithm>
#include <limits>

#include "gpu/cuda_memory.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/cache/cache.h"
#include "runtime/plan/expert_division.h"
#include "runtime/plan/plan_exact.h"
#include "runtime/plan/plan_memory.h"
#include "runtime/plan/plan_prefill.h"

namespace hayloft::runtime::plan {
namespace {

constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();

double milliseconds(std::uint64_t bytes, double gigabytes_per_second) {
  return static_cast<double>(bytes) / gigabytes_per_second / 1e6;
}

// Counts what one rank reads in a step: its own blocks, the tail, and as if all that is selected lay with it.
Counters counters_of_rank(const PlanRequest& request, gpu::CacheView cache, const Method& method) {
  const CacheOptions& options = request.session.cache;
  Counters counters;
  for (cache.layer = 0; cache.layer < request.config.global_layers(); ++cache.layer) {
    gpu::CacheView own = cache;
    own.store.tokens = options.shard.own(cache.store.tokens, options.block_tokens);
    own.tail.position = own.store.tokens;
    counters += method.plan(cache, request.config.query_heads).by->count(own, request.config.query_heads);
  }
  return counters;
}

// `by`: the method that attends, which `auto` has chosen. counters: of one rank.
PlanTime predict(const PlanRequest& request, const offload::BlockLayout& layout, const Counters& of_step,
                 const MethodOptions& by, const MachineProfile& profile) {
  const ModelConfig& config = request.config;
  const std::uint64_t store = host_bytes(config, request.session.cache, request.tokens);
  const AttentionRates rates = profile.rates(config.head_dim, config.group_size(), store);
  const AttentionTime attention = attention_time(by, of_step, layout, rates, profile.rates(config.head_dim, 1, store));
  PlanTime ms;
  ms.search = attention.search;
  ms.rows = attention.rows;
  ms.dense = attention.dense;
  ms.tail = attention.tail;
  for (const std::int64_t window : config.sliding_window) {
    if (window == 0) continue;
    Counters counters;
    const gpu::CacheView cache = cache_of_step(request, layout, window);
    gpu::Attended what;
    what.ranges[0] = {std::max(cache.tail.position, cache.tokens() - window), cache.tokens()};
    count_rows(counters, cache, what, Kind::rows);
    ms.tail += milliseconds(counters.total(Place::device), rates.tail);
  }
  // A state is read and written; both are streams, as weights are.
  const WeightSizes weights = placed_weights(request);
  ms.weights = milliseconds(weights.bytes_per_step + state_bytes(config), profile.weight_stream);
  ms.experts = milliseconds(weights.near_bytes_per_step, profile.near_read) +
               milliseconds(weights.link_bytes_per_step, profile.link_to_device.value_or(profile.near_read));
  ms.fixed = config.layers * profile.layer_overhead_us / 1000;
  return ms;
}

std::uint64_t host_budget(const PlanRequest& request) {
  return request.host_budget > 0 ? request.host_budget : usual_host_budget(request);
}

std::string shortfall(const PlanRequest& request, const PlanMemory& memory) {
  if (memory.device() > request.device_budget) {
    return fmt::format(
        "weights, tails, workspace and scratch need {} of the device's memory, and --gpu-memory gives {}; raise it, "
        "lower --batch, or take a smaller model",
        format_bytes(memory.device()), format_bytes(request.device_budget));
  }
  const std::uint64_t others = memory.total() - std::min(memory.total(), memory.store());
  if (others > request.available_bytes) {
    return fmt::format(
        "{}{}text and program need {}, and the machine has {} to give; take a smaller model or a machine with {} more",
        memory.indices > 0 ? "the methods' indices, " : "", memory.apart ? "" : "weights, tails, workspace, ",
        format_bytes(others), format_bytes(request.available_bytes), format_bytes(others - request.available_bytes));
  }
  const std::uint64_t left = request.available_bytes - others;
  const std::uint64_t most = std::min(host_budget(request), left);
  if (memory.store() <= most) return "";
  const std::int64_t fitting = longest_context(request.config, request.session.cache, most);
  const std::string remedy = memory.store() <= left
                                 ? fmt::format("raise --host-memory to {} bytes", memory.store())
                                 : fmt::format("it takes a machine with {} more", format_bytes(memory.store() - left));
  return fmt::format(
      "keys and values of {} tokens need {} of host memory, and there are {}; {}, or take {} tokens at most",
      request.tokens, format_bytes(memory.store()), format_bytes(most), remedy, fitting);
}

// Returns DecodeStep::by_strips of a method; 0 where one layer selects by logits.
std::int64_t selected_by_strips(const PlanRequest& request, const Method& made, const ExpectedCache& kept,
                                gpu::CacheView cache) {
  const ModelConfig& config = request.config;
  std::int64_t selected = 0;
  for (cache.layer = 0; cache.layer < config.global_layers(); ++cache.layer) {
    const StepPlan plan = made.plan(cache, config.query_heads);
    const MethodOptions& by = plan.by->options();
    const SelectionPlan& lists = plan.selection;
    const int group = config.query_heads / std::max(1, lists.lists);
    const int slots = static_cast<int>(kept.columns_kept * config.head_dim + 0.5);
    if (by.name != "sparq" || rest_of(by).by_scores() ||
        !gpu::cuda_wants_strips(lists.limit, lists.k, group, cache.store.layout->columns) ||
        !gpu::cuda_keeps_strips(slots, by.rank, config.head_dim)) {
      return 0;
    }
    selected += lists.positions();
  }
  return selected;
}

// Returns whether a device has room for the columns that a step of one layer reads besides what it keeps.
bool fetches_ahead(const PlanRequest& request, const PlanMemory& memory, const MethodOptions& by,
                   const std::optional<ExpectedCache>& kept, const gpu::CacheView& cache) {
  const offload::BlockLayout& layout = *cache.store.layout;
  if (!memory.apart || memory.device() > request.device_budget || request.device_cache.columns == 0) return false;
  if (by.name != "sparq" || in_planes(layout.columns) || layout.block_tokens < gpu::cuda_least_cached_block) {
    return false;
  }
  const std::uint64_t blocks = static_cast<std::uint64_t>(cache.store.tokens / layout.block_tokens);
  const std::uint64_t columns = static_cast<std::uint64_t>(layout.kv_heads) * static_cast<std::uint64_t>(by.rank);
  const std::uint64_t free = request.device_budget - memory.device(), taken = kept ? kept->column_bytes : 0;
  return blocks * columns * (layout.column_bytes + layout.scale_bytes) <=
         (free - std::min(free, taken)) / gpu::cuda_ahead_part;
}

PlannedMethod plan_method(const PlanRequest& request, const PlanMemory& memory, const MethodOptions& options,
                          const MachineProfile* profile) {
  const offload::BlockLayout layout(store_shape(request.config, request.session.cache));
  gpu::CacheView cache = cache_of_step(request, layout, 0);
  PlannedMethod method;
  method.attn = options;
  const SharedMethod made = make_method(options, request.config.head_dim);
  made->require_columns(layout.columns);
  made->require_layers(request.config.global_layers());
  for (cache.layer = 0; cache.layer < request.config.global_layers(); ++cache.layer) {
    method.counters += made->count(cache, request.config.query_heads);
  }
  cache.layer = 0;
  const MethodOptions& by = made->plan(cache, request.config.query_heads).by->options();
  // A profile has rates of f16 rows, which say nothing of what reading integers takes.
  if (profile && layout.row_format == offload::RowFormat::f16) {
    method.ms = predict(request, layout, counters_of_rank(request, cache, *made), by, *profile);
  }
  const int ranks = request.session.cache.shard.ranks;
  method.network = network_step(request.config, *made, cache, ranks);
  if (method.network && request.network) method.network_ms = network_ms(*method.network, *request.network, ranks);
  if (method.ms) method.ms->network = method.network_ms.value_or(0);
  if (memory.apart && memory.device() <= request.device_budget) {
    const offload::StoreShape shape = store_shape(request.config, request.session.cache);
    const ExpectedCache expected =
        expect_cache(method.counters, shape, cache.store.tokens / shape.block_tokens, request.device_cache,
                     request.device_budget - memory.device(),
                     request.device_budget - std::min(request.device_budget, gpu::cuda_context_bytes));
    if (expected.columns_held + expected.rows_held > 0) method.cache = expected;
  }
  if (request.card) {
    DecodeStep step{&request.config, placed_weights(request), by, method.counters, layout.columns, layout.row_format};
    if (method.cache) {
      step.columns_held = method.cache->columns_held, step.rows_held = method.cache->rows_held;
      step.by_strips = selected_by_strips(request, *made, *method.cache, cache);
    }
    if (fetches_ahead(request, memory, by, method.cache, cache)) {
      // Columns that are kept are as a rule chosen again, so of the others fewer are.
      const double held = step.columns_held;
      if (held < columns_chosen_again) step.columns_again = (columns_chosen_again - held) / (1 - held);
    }
    method.predicted = predict_stages(step, *request.card);
  }
  return method;
}

}  // namespace

std::int64_t longest_context(const ModelConfig& config, const CacheOptions& options, std::uint64_t bytes) {
  CacheOptions alone = options;
  alone.shard = {};
  const std::uint64_t step = host_bytes(config, alone, options.window + options.block_tokens);  // a block per layer
  if (step == 0) return longest;
  const std::uint64_t blocks = bytes / step * static_cast<std::uint64_t>(options.shard.ranks);
  const auto B = static_cast<std::uint64_t>(options.block_tokens);
  if (blocks >= static_cast<std::uint64_t>(longest) / B) return longest;
  return std::min(longest, options.window + static_cast<std::int64_t>((blocks + 1) * B) - 1);
}

ExpertPlacement placed_experts(const PlanRequest& request) {
  if (request.placed_experts) return *request.placed_experts;
  return divide_device(request);
}

namespace {

PlanRequest with_experts_placed(PlanRequest request) {
  request.placed_experts = placed_experts(request);
  return request;
}

std::optional<PlannedExperts> plan_experts(const PlanRequest& request) {
  const ExpertPlacement placement = placed_experts(request);
  if (placement.place == ExpertPlace::device) return std::nullopt;
  const WeightSizes weights = placed_weights(request);
  PlannedExperts experts{placement, weights.experts, 0, weights.link_bytes_per_step, weights.near_bytes_per_step};
  if (placement.place == ExpertPlace::link) {
    experts.held = request.experts_held.at(static_cast<double>(placement.kept) / weights.experts);
  }
  if (const MethodOptions* method = divided_for(request)) experts.divided_for = method_label(*method);
  return experts;
}

}  // namespace

WeightSizes placed_weights(const PlanRequest& request) {
  return placed(request.weights, placed_experts(request), request.experts_held);
}

std::uint64_t usual_host_budget(const PlanRequest& request) {
  const std::uint64_t weights = request.device_budget > 0 ? placed_weights(request).host_bytes : request.weights.bytes;
  return (request.available_bytes - std::min(weights, request.available_bytes)) / 10 * 9;
}

bool fits(const PlanRequest& asked) {
  const PlanRequest request = with_experts_placed(asked);
  const offload::ColumnFormat columns =
      offload::BlockLayout(store_shape(request.config, request.session.cache)).columns;
  for (const MethodOptions& options : request.methods) {
    make_method(options, request.config.head_dim)->require_columns(columns);
  }
  return shortfall(request, plan_memory(request)).empty();
}

Plan make_plan(const PlanRequest& asked, const MachineProfile* profile) {
  const PlanRequest request = with_experts_placed(asked);
  Plan plan;
  plan.tokens = request.tokens;
  plan.ranks = request.session.cache.shard.ranks;
  plan.memory = plan_memory(request);
  plan.host_budget = host_budget(request);
  plan.device_budget = request.device_budget;
  plan.shortfall = shortfall(request, plan.memory);
  plan.experts = plan_experts(request);
  for (const MethodOptions& options : request.methods) {
    plan.methods.push_back(plan_method(request, plan.memory, options, profile));
  }
  plan.accepted = request.accepted;
  if (request.accepted) {
    MethodOptions dense;
    dense.rates = request.methods.empty() ? dense.rates : request.methods.front().rates;
    std::optional<Plan> head;
    if (request.head) head = make_plan(request_of_head(request), profile);
    plan.exact =
        plan_exact(request, plan_method(request, plan.memory, dense, profile), plan.methods, head ? &*head : nullptr);
  }
  plan.prefill = plan_prefill(request, profile);
  return plan;
}

ModelConfig config_of_shape(const ShapeOptions& shape) {
  const auto checked = [](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) fail("--shape: {} {} must be between 1 and {}", name, value, most);
    return static_cast<int>(value);
  };
  ModelConfig config;
  config.architecture = "shape";
  config.layers = checked("layers", shape.layers, 4096);
  config.query_heads = checked("heads", shape.heads, 4096);
  config.kv_heads = checked("kv-heads", shape.kv_heads, shape.heads);
  config.head_dim = checked("head-dim", shape.head_dim, offload::most_head_dim);
  if (shape.heads % shape.kv_heads != 0) {
    fail("--shape: heads {} is not a multiple of kv-heads {}", shape.heads, shape.kv_heads);
  }
  if (shape.head_dim % 8 != 0) {
    fail("--shape: head-dim {} must be a multiple of 8 up to {}", shape.head_dim, offload::most_head_dim);
  }
  const std::int64_t hidden = shape.hidden ? shape.hidden : shape.heads * shape.head_dim;
  config.hidden_size = checked("hidden", hidden, 1 << 22);
  config.intermediate_size = checked("intermediate", shape.intermediate ? shape.intermediate : hidden * 7 / 2, 1 << 24);
  config.vocab_size = checked("vocab", shape.vocab ? shape.vocab : 128256, 1 << 24);
  config.sliding_window.assign(static_cast<std::size_t>(config.layers), 0);
  config.rope.assign(static_cast<std::size_t>(config.layers), true);
  config.global_rope.dimensions = config.head_dim;
  set_rope(config);
  return config;
}

}  // namespace hayloft::runtime::plan
