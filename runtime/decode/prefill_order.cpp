#include "runtime/decode/prefill_order.h"

#include <algorithm>

#include "gpu/cuda_sparse.h"
#include "offload/error.h"
#include "offload/text/units.h"

namespace hayloft::runtime {
namespace {

using Strategy = PrefillOptions::Kind;
using Order = PrefillOptions::Order;

}  // namespace

int attending_layers(const ModelConfig& config) {
  int count = 0;
  for (int layer = 0; layer + 1 < config.layers; ++layer) {
    if (config.kind(layer) == LayerKind::global) ++count;
  }
  return count;
}

PrefillTraffic prefill_traffic(const ModelConfig& config, const SessionOptions& options, std::int64_t tokens,
                               const WeightSizes& weights, const ExpertPlacement& experts) {
  const PrefillOptions& prefill = options.prefill;
  const std::int64_t B = options.cache.block_tokens;
  double rows = 0;  // of one KV head of one global layer, over all chunks
  for (std::int64_t at = 0; at < tokens; at += options.chunk_tokens) {
    const std::int64_t stored = std::max<std::int64_t>(0, at - options.cache.window) / B * B;
    const std::int64_t T = std::min<std::int64_t>(options.chunk_tokens, tokens - at);
    std::int64_t read = stored;
    if (prefill.kind == Strategy::window) {
      const std::int64_t first = std::max<std::int64_t>(0, at - prefill.window + 1);
      read = std::max<std::int64_t>(0, stored - first) + std::min({prefill.sinks, stored, first});
    } else if (prefill.kind == Strategy::topk) {
      const std::int64_t limit = std::min(stored, std::max<std::int64_t>(0, at + T - prefill.window));
      read = stored - limit + std::min(prefill.k.of(at + T), limit) * T * config.group_size();
    } else if (prefill.kind == Strategy::sparse) {
      read = stored *
             gpu::cuda_sparse_passes(config.kv_heads, config.group_size(), at, static_cast<int>(T), prefill.sparse);
    }
    rows += static_cast<double>(read);
  }
  PrefillTraffic traffic;
  const std::uint64_t row_bytes = offload::BlockLayout(store_shape(config, options.cache)).row_bytes;
  traffic.chunk_major = rows * static_cast<double>(row_bytes) * config.kv_heads * attending_layers(config);
  traffic.layer_major = static_cast<double>(tokens) * config.hidden_size * sizeof(float) * (2 * config.layers - 1);
  if (experts.slots()) {
    const std::uint64_t all = weights.mixture_bytes, count = static_cast<unsigned>(config.experts.count);
    const auto missing = static_cast<double>(all / count * (count - static_cast<unsigned>(experts.kept)));
    const auto chunks = static_cast<double>((tokens + options.chunk_tokens - 1) / options.chunk_tokens);
    traffic.chunk_major += chunks * missing;
    traffic.layer_major += experts.ring > config.experts.count ? missing : chunks * missing;
  }
  return traffic;
}

PrefillOrder prefill_order(const ModelConfig& config, const SessionOptions& options, std::int64_t tokens, bool resident,
                           const WeightSizes& weights, const ExpertPlacement& experts) {
  if (options.prefill.order != Order::automatic) return {options.prefill.order, "as --prefill-order says"};
  if (!resident) return {Order::chunk, "no device has room to keep a layer's keys and values while the chunks pass"};
  const PrefillTraffic traffic = prefill_traffic(config, options, tokens, weights, experts);
  const bool layer = traffic.layer_major < traffic.chunk_major;
  return {layer ? Order::layer : Order::chunk,
          fmt::format("{} move layer by layer, {} chunk by chunk", format_large_bytes(traffic.layer_major),
                      format_large_bytes(traffic.chunk_major))};
}

}  // namespace hayloft::runtime
