#include "runtime/plan/plan_memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "gpu/cuda_memory.h"
#include "index/scan/rest_kernels.h"
#include "offload/snapshot/format.h"
#include "runtime/cache/cache.h"
#include "runtime/cluster/rank_attender.h"
#include "runtime/context/ingest.h"
#include "runtime/context/measure_columns.h"

namespace hayloft::runtime::plan {
namespace {

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
      const auto elements = static_cast<std::uint64_t>(2 * config.heads(layer).width());
      known->second = offload::tail_bytes(layout, tail.tokens, elements);
    }
    tails += known->second;
  }
  const auto tokens = static_cast<std::uint64_t>(request.tokens);
  const int kept = kept_checkpoints(config, request.checkpoints);
  const std::uint64_t earlier = kept > 1 ? static_cast<std::uint64_t>(kept + 2) * pages(tails) : 0;
  return earlier + offload::snapshot_header_bytes + store + pages(tokens * sizeof(std::int32_t)) + pages(3 * tails) +
         pages(tokens) + (tokens / static_cast<std::uint64_t>(request.session.chunk_tokens) + 1) * pages(1);
}

// The rows of the tokens behind the last whole chunk are in no block of a saved context, but in tails, and once more on
// their way to the file. Earlier, with the tails that reading has then, columns are tried on a layer at a time.
std::uint64_t saving_bytes(const PlanRequest& request, const PlanMemory& memory) {
  const ModelConfig& config = request.config;
  const SessionOptions& session = request.session;
  const std::int64_t behind = request.tokens % session.chunk_tokens;
  const std::uint64_t whole = host_bytes(config, session.cache, request.tokens - behind);
  std::int64_t elements = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::int64_t window = config.sliding_window[static_cast<std::size_t>(layer)];
    elements += (window > 0 ? std::min(window, behind) : behind) * 2 * config.heads(layer).width();
  }
  if (config.count(LayerKind::recurrent) > 0) elements = 0;  // they are read again
  const std::uint64_t end = static_cast<std::uint64_t>(elements) * sizeof(f16);
  const std::uint64_t forked = std::min(memory.question, memory.tails + end);  // which reads the end
  const std::uint64_t tails = memory.apart ? 0 : std::max(memory.question, memory.tails + forked + end);
  const std::uint64_t at_end = whole - std::min(whole, memory.mapped) + (memory.apart ? end : tails);
  const std::int64_t tried = choosing_tokens(config, session, request.tokens);
  if (tried == 0 || request.mapped_tokens > 0) return at_end;
  constexpr std::uint64_t search_bytes = 128;  // a token, measured in the way of the constants below
  const std::uint64_t choosing = host_bytes(config, session.cache, tried) + measuring_bytes(config, tried) +
                                 static_cast<std::uint64_t>(tried) * search_bytes +
                                 (memory.apart ? 0 : tail_bytes(config, session.cache, tried, session.chunk_tokens));
  return std::max(at_end, choosing);
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

}  // namespace

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
  const auto sessions = static_cast<std::uint64_t>(request.sessions);
  memory.states = (1 + sessions) * states;
  memory.tails = kept_tail_bytes(request.config, options, request.tokens, request.session.chunk_tokens) - states;
  memory.question =
      sessions * (tail_bytes(request.config, options, request.tokens, request.session.chunk_tokens) - states);
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
  memory.saving = saving_bytes(request, memory);
  memory.saves = request.saves;
  return memory;
}

gpu::CacheView cache_of_step(const PlanRequest& request, const offload::BlockLayout& layout, std::int64_t window) {
  TailSlots tail = tail_after(request.session.cache, window, request.tokens, request.session.chunk_tokens);
  tail.forget();
  gpu::CacheView cache;
  const ModelConfig& config = request.config;
  const LayerHeads heads = window > 0 ? config.sliding_heads() : LayerHeads{config.kv_heads, config.head_dim};
  cache.kv_heads = heads.kv;
  cache.head_dim = heads.dim;
  cache.store.layout = &layout;
  if (window == 0) cache.store.tokens = tail.position;
  cache.tail.position = tail.position;
  cache.tail.tokens = tail.tokens + 1;
  return cache;
}

}  // namespace hayloft::runtime::plan
