#include <algorithm>
#include <stdexcept>

#include "offload/error.h"
#include "runtime/cache/cache.h"

// A cache from a snapshot and for one.
namespace hayloft::runtime {

Cache::Cache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config, const CacheOptions& options,
             const offload::Snapshot& snapshot)
    : Cache(backend, arena, config, options) {
  if (snapshot.description().shape != store_.shape() || snapshot.description().model_layers != config.layers) {
    fail("{}: its layers, heads or block size are not those of this model and these options", snapshot.path().string());
  }
  if (snapshot.part() != options.shard) throw std::logic_error("Cache: the snapshot has the blocks of another rank");
  store_ = snapshot.store(arena);
  if (options.copy_saved) store_.copy_mapped_blocks(backend.threads());
  if (snapshot.cached_tokens() == 0) return;  // as create() left it: no layer has been seen yet
  const gpu::Stream stream = backend_->stream();
  for (int layer = 0; layer < config.layers; ++layer) {
    const offload::SnapshotTail saved = snapshot.tail(layer);
    Tail& tail = tails_[static_cast<std::size_t>(layer)];
    if (saved.store_layer != tail.store_layer) {
      fail("{}: layer {} is {} there, and {} in this model", snapshot.path().string(), layer,
           saved.store_layer < 0 ? "sliding-window" : "global", tail.store_layer < 0 ? "sliding-window" : "global");
    }
    tail.position = saved.position;
    if (!tail.exact_sum.empty()) {
      tail.exact_sum = saved.whole_sum;
      std::ranges::transform(tail.exact_sum, tail.value_sum.begin(), [](double x) { return static_cast<float>(x); });
    }
    if (tail.recurrent || !saved.state.empty()) {
      restore_state(tail, saved, snapshot.path().string(), layer);
      continue;
    }
    const bool alike = saved.tokens == 0 || saved.kv_heads == own_heads(tail);
    if (!alike || static_cast<std::int64_t>(saved.rows.size()) != saved.tokens * 2 * tail.heads.width()) {
      fail("{}: layer {} has heads of another shape there than in this model", snapshot.path().string(), layer);
    }
    tail.tokens = tail.capacity = saved.tokens;
    if (saved.tokens == 0) continue;
    tail.rows = backend_->allocate(saved.rows.size() * sizeof(f16), stream);
    backend_->to_device(tail.rows.as<void>(), saved.rows.data(), saved.rows.size() * sizeof(f16), stream);
    backend_->synchronize(stream);  // the host memory of the rows is freed next
  }
}

int Cache::own_heads(const Tail& tail) const {
  const offload::StoreShape& shape = store_.shape();
  const bool alike = tail.heads == LayerHeads{shape.kv_heads, shape.head_dim};
  return tail.store_layer >= 0 || tail.recurrent || alike ? 0 : tail.heads.kv;
}

std::vector<double> Cache::own_spread() const {
  std::vector<double> all;
  for (const Tail& tail : tails_) {
    if (tail.exact_spread.empty()) continue;
    const std::span<const double> own = store_.exact_spread(tail.store_layer);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

void Cache::set_spread(std::span<const double> of_all) {
  for (Tail& tail : tails_) {
    if (tail.exact_spread.empty()) continue;
    const auto own = of_all.first(tail.exact_spread.size());
    of_all = of_all.subspan(own.size());
    std::ranges::copy(own, tail.exact_spread.begin());
    std::ranges::transform(own, tail.spread.begin(), [](double x) { return static_cast<float>(x); });
  }
}

void Cache::restore_state(Tail& tail, const offload::SnapshotTail& saved, const std::string& file, int layer) const {
  const std::size_t wanted = tail.recurrent ? static_cast<std::size_t>(delta_.kept_floats()) : 0;
  if (saved.state.size() != wanted) {
    fail("{}: layer {} has a state of {} numbers there, and in this model {}", file, layer, saved.state.size(), wanted);
  }
  tail.state = backend_->allocate(recurrent_bytes(delta_), backend_->stream());
  backend_->to_device(tail.state.as<void>(), saved.state.data(), recurrent_bytes(delta_), backend_->stream());
  backend_->synchronize(backend_->stream());  // the host memory of the state is freed next
}

std::vector<offload::SnapshotTail> Cache::tails() const {
  std::vector<offload::SnapshotTail> images;
  for (std::size_t layer = 0; layer < tails_.size(); ++layer) images.push_back(tail(static_cast<int>(layer)));
  return images;
}

offload::SnapshotTail Cache::tail(int layer) const {
  const Tail& tail = tails_[static_cast<std::size_t>(layer)];
  // A sliding-window layer may still hold a little more than its window.
  const std::int64_t surplus = tail.window > 0 ? std::max<std::int64_t>(0, tail.tokens - tail.window) : 0;
  offload::SnapshotTail image{tail.store_layer, tail.position + surplus, tail.tokens - surplus, {}, {}, tail.exact_sum};
  if (tail.recurrent && tail.position > 0) {
    image.state.resize(static_cast<std::size_t>(delta_.kept_floats()));
    backend_->to_host(image.state.data(), tail.state.as<void>(), recurrent_bytes(delta_), backend_->stream());
  }
  image.kv_heads = own_heads(tail);
  const int d = tail.heads.dim;
  const std::int64_t per_head = image.tokens * 2 * d;
  image.rows.resize(static_cast<std::size_t>(tail.heads.kv * per_head));
  for (int head = 0; head < tail.heads.kv && image.tokens > 0; ++head) {
    backend_->to_host(image.rows.data() + head * per_head,
                      tail.rows.as<f16>() + (head * tail.capacity + tail.first + surplus) * 2 * d,
                      static_cast<std::uint64_t>(per_head) * sizeof(f16), backend_->stream());
  }
  return image;
}

}  // namespace hayloft::runtime
