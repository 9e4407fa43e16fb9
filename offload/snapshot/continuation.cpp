#include "offload/snapshot/continuation.h"

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace hayloft::offload {
namespace {

// Returns whether a store that holds so many tokens of a layer ends where the tail begins, which has the sums of all.
bool stores(const SnapshotDescription& description, const TailImage& tail, std::int64_t tokens) {
  const std::size_t sums = whole_sums(description);
  return ends_before(description, tokens, tail.position) && (sums == 0 || tail.whole_sum.size() == sums);
}

}  // namespace

void check_continues(const std::filesystem::path& path, const SnapshotState& state, const Store& store,
                     std::span<const std::int32_t> tokens, std::span<const TailImage> tails) {
  const SnapshotDescription& description = state.header.description;
  const auto mistake = [&](const std::string& what) {
    throw std::logic_error(fmt::format("SnapshotWriter: {}: {}", path.string(), what));
  };
  if (store.shape() != description.shape) mistake("a store of another shape");
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count < state.header.tokens) mistake(fmt::format("{} tokens after {}", count, state.header.tokens));
  if (tails.size() != static_cast<std::size_t>(description.model_layers)) {
    mistake(fmt::format("{} tails for {} layers", tails.size(), description.model_layers));
  }
  const std::int64_t cached = tails.front().position + tails.front().tokens;
  if (cached < state.metadata.cached_tokens() || cached > count) {
    mistake(fmt::format("tails that end at token {} of {}, after {}", cached, count, state.metadata.cached_tokens()));
  }
  int store_layer = 0;
  for (const TailImage& tail : tails) {
    if (tail.tokens < 0 || tail.position < 0 || tail.position + tail.tokens != cached ||
        tail.rows.size_bytes() != tail_bytes(state.layout, tail.tokens, other_row_elements(tail)) ||
        (!tail.state.empty() && (tail.tokens > 0 || tail.store_layer != -1))) {
      mistake(fmt::format("a tail of tokens {} to {} in {} elements, among others that end at {}", tail.position,
                          tail.position + tail.tokens, tail.rows.size(), cached));
    }
    if (tail.store_layer == -1) continue;
    if (tail.store_layer != store_layer || store_layer >= store.shape().layers ||
        !stores(description, tail, store.tokens(store_layer)) ||
        store.tokens(store_layer) < state.metadata.layers[static_cast<std::size_t>(store_layer)].tokens) {
      mistake(fmt::format("a tail from token {} on does not continue layer {} of the store", tail.position,
                          tail.store_layer));
    }
    ++store_layer;
  }
  if (store_layer != store.shape().layers) mistake("layers of the store without a tail");
}

}  // namespace hayloft::offload
