#include "runtime/plan/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "gpu/cuda_memory.h"
#include "index/scan/rest_kernels.h"
#include "offload/error.h"
#include "offload/snapshot/format.h"
#include "offload/text/format.h"
#include "runtime/cache/cache.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/context/ingest.h"
#include "runtime/plan/plan_exact.h"
#include "runtime/plan/plan_prefill.h"

namespace hayloft::runtime::plan {
namespace {

constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();

std::uint64_t pages(std::uint64_t bytes) {
  return (bytes + offload::snapshot_alignment - 1) / offload::snapshot_alignment * offload::snapshot_alignment;
}

// At most: checkpoints leave areas behind that are no larger than twice the last, which has half as much again as it
// needs. Those that are kept have ranges of their own, and two more take turns: what the last checkpoint but one refers
// to is not written over. The end of a text lies beside, whole. Ids of tokens begin at a page with every checkpoint, of
// which a chunk has one at most. The metadata of blocks is a few bytes each and counts as a page per thousand tokens.
std::uint64_t saved_bytes(const PlanRequest& request, const offload::BlockLayout& layout, std::uint64_t store) {
  std::uint64_t tails = 0;
  const ModelConfig& config = request.config;
  std::map<std::int64_t, std::uint64_t> by_window;  // tail_after() goes through all chunks
  for (int layer = 0; layer < config.layers; ++layer) {
    if (config.kind(layer) == LayerKind::recurrent) {
      tails += recurrent_bytes(config.delta);
      continue;
    }
    const std::int64_t window = config.sliding_window[static_cast<std::size_t>(layer)];
    const auto [known, fresh] = by_window.try_emplace(window);
    if (fresh) {
      TailSlots tail = tail_after(request.session.cache, window, request.tokens, request.session.chunk_tokens);
      tail.forget();
      if (window == 0) tail.tokens = std::max(tail.tokens, request.tokens % request.session.chunk_tokens);  // the end
      known->second = offload::tail_bytes(layout, tail.tokens);
    }
    tails += known->second;
  }
  const auto tokens = static_cast<std::uint64_t>(request.tokens);
  const int kept = kept_checkpoints(config, request.checkpoints);
  const std::uint64_t earlier = kept > 1 ? static_cast<std::uint64_t>(kept + 2) * pages(tails) : 0;
  return earlier + offload::snapshot_header_bytes + store + pages(tokens * sizeof(std::int32_t)) + pages(3 * tails) +
         pages(tokens) + (tokens / static_cast<std::uint64_t>(request.session.chunk_tokens) + 1) * pages(1);
}

// Measured on Linux x86-64 with Debian 12's libraries, by the peak of the resident memory of runs that vary one thing
// at a time; tests/runtime/plan/plan_memory_slow_test.cpp holds the sum to 5%.
constexpr std::uint64_t library_bytes = std::uint64_t{15} << 20;  // code and data of the program and its libraries
constexpr std::uint64_t thread_bytes = std::uint64_t{700} << 10;  // scratch and the touched part of a stack
constexpr std::uint64_t tokenizer_growth = 9;       // tables over the JSON they come from: 8.7 for Qwen2's 6 MB
constexpr std::uint64_t text_bytes_per_token = 14;  // English at 3.7 bytes a token, its pieces, and ids of 4 bytes

std::uint64_t program_bytes(int threads, std::uint64_t tokenizer_file_bytes) {
  return library_bytes + static_cast<std::uint64_t>(threads) * thread_bytes + tokenizer_file_bytes * tokenizer_growth;
}

// Device memory of the scores that a rest by scores keeps of every position from the selection on, with the keys of
// what ranks them (gpu/cuda/kernels/rest), of one layer; and of the keys of all that lines are fitted over.
std::uint64_t kept_scores_bytes(const PlanRequest& request) {
  const auto keeps = [](const MethodOptions& method) {
    return rest_of(method).by_scores() && (method.name == "sparq" || method.name == "planes");
  };
  if (std::ranges::none_of(request.methods, keeps)) return 0;
  const auto heads = static_cast<std::uint64_t>(request.config.query_heads + request.config.kv_heads);
  const std::uint64_t sampled = static_cast<std::uint64_t>(request.config.global_layers()) *
                                static_cast<std::uint64_t>(request.config.kv_heads * request.config.head_dim) *
                                index::line_row * sizeof(f16);
  return sampled + heads * static_cast<std::uint64_t>(gpu::scores_stride(request.tokens)) * sizeof(float);
}

PlanMemory plan_memory(const PlanRequest& request) {
  const CacheOptions& options = request.session.cache;
  const offload::BlockLayout layout(store_shape(request.config, options));
  PlanMemory memory;
  const std::int64_t blocks_mapped = request.mapped_tokens / options.block_tokens;
  memory.mapped = host_bytes(request.config, options, options.window + blocks_mapped * options.block_tokens);
  const std::uint64_t store = host_bytes(request.config, options, request.tokens);
  const std::int64_t stored = options.shard.own_blocks(
      tail_after(options, 0, request.tokens, request.session.chunk_tokens).position / options.block_tokens);
  memory.columns =
      static_cast<std::uint64_t>(std::max<std::int64_t>(0, stored - options.shard.own_blocks(blocks_mapped))) *
      static_cast<std::uint64_t>(request.config.global_layers()) * static_cast<std::uint64_t>(layout.kv_heads) *
      static_cast<std::uint64_t>(layout.head_dim) * (layout.column_bytes + layout.scale_bytes);
  memory.rows = store - std::min(store, memory.mapped) - memory.columns;
  std::set<std::string> counted;
  for (const MethodOptions& options_of_method : request.methods) {
    const SharedMethod method = make_method(options_of_method, request.config.head_dim);
    if (!counted.insert(method->state_key()).second) continue;
    memory.indices += method->state_bytes(
        {request.config.global_layers(), request.config.query_heads, request.config.kv_heads, request.config.head_dim},
        options.shard.alone() || method->state_is_whole()
            ? request.tokens
            : options.shard.own_blocks((request.tokens + options.block_tokens - 1) / options.block_tokens) *
                  options.block_tokens);
  }
  const std::uint64_t states = state_bytes(request.config);
  memory.states = 2 * states;
  memory.tails = kept_tail_bytes(request.config, options, request.tokens, request.session.chunk_tokens) - states;
  memory.question = tail_bytes(request.config, options, request.tokens, request.session.chunk_tokens) - states;
  const int chunk = static_cast<int>(std::min<std::int64_t>(request.session.chunk_tokens, request.tokens));
  memory.workspace = workspace_bytes(request.config, chunk);
  if (request.session.prefill.order == PrefillOptions::Order::layer) {  // hidden states in host memory
    memory.workspace += static_cast<std::uint64_t>(request.tokens) *
                        static_cast<std::uint64_t>(request.config.hidden_size) * sizeof(float);
  }
  memory.apart = request.device_budget > 0;
  const WeightSizes weights = placed_weights(request);
  memory.host_weights = memory.apart ? weights.host_bytes : 0;
  memory.weights = weights.bytes - memory.host_weights;
  if (memory.apart) {
    const std::uint64_t pinned = store - std::min(store, memory.mapped) + memory.host_weights;
    memory.scratch =
        gpu::cuda_context_bytes + gpu::cuda_workspace_bytes + gpu::cuda_page_table_bytes(pinned) +
        gpu::cuda_range_bytes(store_shape(request.config, options), stored) +
        std::max(
            {gpu::cuda_step_bytes(request.device_budget - std::min(request.device_budget, gpu::cuda_context_bytes)),
             gpu::cuda_scratch_bytes(scratch_shape(request.config, chunk)), kept_scores_bytes(request)});
    if (!options.shard.alone()) {
      memory.scratch += cluster::prefill_bytes_over_ranks(request.config.query_heads, request.config.head_dim, chunk,
                                                          options.shard.ranks);
    }
  }
  memory.program = program_bytes(request.threads, request.tokenizer_file_bytes);
  memory.text = static_cast<std::uint64_t>(request.tokens) * text_bytes_per_token;
  memory.saved = saved_bytes(request, layout, store);
  return memory;
}

// The caches of a step that decodes one token behind the context: of a layer with that window.
gpu::CacheView cache_of_step(const PlanRequest& request, const offload::BlockLayout& layout, std::int64_t window) {
  TailSlots tail = tail_after(request.session.cache, window, request.tokens, request.session.chunk_tokens);
  tail.forget();
  gpu::CacheView cache;
  cache.kv_heads = layout.kv_heads;
  cache.head_dim = layout.head_dim;
  cache.store.layout = &layout;
  if (window == 0) cache.store.tokens = tail.position;
  cache.tail.position = tail.position;
  cache.tail.tokens = tail.tokens + 1;
  return cache;
}

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
  const std::uint64_t others = memory.total() - memory.store();
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

PlannedMethod plan_method(const PlanRequest& request, const PlanMemory& memory, const MethodOptions& options,
                          const MachineProfile* profile) {
  const offload::BlockLayout layout(store_shape(request.config, request.session.cache));
  gpu::CacheView cache = cache_of_step(request, layout, 0);
  PlannedMethod method;
  method.attn = options;
  const SharedMethod made = make_method(options, request.config.head_dim);
  made->require_columns(layout.columns);
  for (cache.layer = 0; cache.layer < request.config.global_layers(); ++cache.layer) {
    method.counters += made->count(cache, request.config.query_heads);
  }
  cache.layer = 0;
  const MethodOptions& by = made->plan(cache, request.config.query_heads).by->options();
  // A profile has rates of f16 rows, which say nothing of what reading integers takes.
  if (profile && layout.row_format == offload::RowFormat::f16) {
    const bool alone = request.session.cache.shard.alone();
    method.ms =
        predict(request, layout, alone ? method.counters : counters_of_rank(request, cache, *made), by, *profile);
  }
  if (!request.session.cache.shard.alone()) {
    method.network = network_step(request.config, *made, cache, request.session.cache.shard.ranks);
    if (request.network) {
      method.network_ms = network_ms(*method.network, *request.network, request.session.cache.shard.ranks);
    }
    if (method.ms) method.ms->network = method.network_ms.value_or(0);
  }
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
  if (request.device_budget == 0) return {};
  const std::uint64_t taken = gpu::cuda_context_bytes + gpu::cuda_workspace_bytes;
  return place_experts(request.weights, request.experts,
                       request.device_budget - std::min(request.device_budget, taken));
}

WeightSizes placed_weights(const PlanRequest& request) {
  return placed(request.weights, placed_experts(request), request.experts_held);
}

std::uint64_t usual_host_budget(const PlanRequest& request) {
  const std::uint64_t weights = request.device_budget > 0 ? placed_weights(request).host_bytes : request.weights.bytes;
  return (request.available_bytes - std::min(weights, request.available_bytes)) / 10 * 9;
}

bool fits(const PlanRequest& request) {
  const offload::ColumnFormat columns =
      offload::BlockLayout(store_shape(request.config, request.session.cache)).columns;
  for (const MethodOptions& options : request.methods) {
    make_method(options, request.config.head_dim)->require_columns(columns);
  }
  return shortfall(request, plan_memory(request)).empty();
}

namespace {

std::optional<PlannedExperts> plan_experts(const PlanRequest& request) {
  const ExpertPlacement placement = placed_experts(request);
  if (placement.place == ExpertPlace::device) return std::nullopt;
  const WeightSizes weights = placed_weights(request);
  PlannedExperts experts{placement, weights.experts, 0, weights.link_bytes_per_step, weights.near_bytes_per_step};
  if (placement.place == ExpertPlace::link) {
    experts.held = request.experts_held.at(static_cast<double>(placement.kept) / weights.experts);
  }
  return experts;
}

}  // namespace

Plan make_plan(const PlanRequest& request, const MachineProfile* profile) {
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
    plan.exact = plan_exact(request, plan_method(request, plan.memory, dense, profile), plan.methods);
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
  config.head_dim = checked("head-dim", shape.head_dim, 256);
  if (shape.heads % shape.kv_heads != 0) {
    fail("--shape: heads {} is not a multiple of kv-heads {}", shape.heads, shape.kv_heads);
  }
  if (shape.head_dim % 8 != 0) fail("--shape: head-dim {} must be a multiple of 8 up to 256", shape.head_dim);
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
