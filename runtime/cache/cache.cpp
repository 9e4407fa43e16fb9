#include "runtime/cache/cache.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <utility>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

// A cache remembers so many origins: the oldest, which all have that go on with one context, and the newest others.
constexpr std::size_t kOrigins = 8;

gpu::TailOrigin new_origin() {
  static std::atomic<std::uint64_t> caches = 0;
  return {++caches, std::numeric_limits<std::int64_t>::max()};
}

}  // namespace

Cache::Cache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config, const CacheOptions& options)
    : backend_(&backend),
      options_(options),
      delta_(config.delta),
      store_(arena, store_shape(config, options)),
      tails_(static_cast<std::size_t>(config.layers)),
      origins_{new_origin()},
      spills_(backend) {
  if (options.window < 0) fail("a cache's window of {} tokens: cannot be negative", options.window);
  int global = 0;
  for (int layer = 0; layer < config.layers; ++layer) {
    Tail& tail = tails_[static_cast<std::size_t>(layer)];
    tail.window = config.sliding_window[static_cast<std::size_t>(layer)];
    tail.heads = config.heads(layer);
    tail.recurrent = config.kind(layer) == LayerKind::recurrent;
    if (config.kind(layer) != LayerKind::global) continue;
    tail.store_layer = global++;
    if (options.shard.alone()) continue;
    const auto sums = static_cast<std::size_t>(tail.heads.width());
    tail.exact_sum.assign(sums, 0.0);
    tail.value_sum.assign(sums, 0.0f);
    if (!in_planes(options.columns)) continue;
    tail.exact_spread.assign(sums, 0.0);
    tail.spread.assign(sums, 0.0f);
  }
}

Cache::Cache(const Cache& other, offload::Store store, std::int64_t tokens)
    : backend_(other.backend_),
      options_(other.options_),
      delta_(other.delta_),
      store_(std::move(store)),
      tails_(other.tails_.size()),
      spills_(*other.backend_) {
  std::int64_t oldest = tokens;
  for (std::size_t layer = 0; layer < tails_.size(); ++layer) {
    const Tail& from = other.tails_[layer];
    Tail& to = tails_[layer];
    if (!from.recurrent) oldest = std::min(oldest, from.position);
    to.window = from.window;
    to.heads = from.heads;
    to.store_layer = from.store_layer;
    to.position = from.position;
    to.recurrent = from.recurrent;
    to.exact_sum = from.exact_sum;
    to.value_sum = from.value_sum;
    to.exact_spread = from.exact_spread;
    to.spread = from.spread;
    if (from.state) {
      to.state = backend_->allocate(from.state.bytes(), backend_->stream());
      backend_->copy(to.state.as<void>(), from.state.as<void>(), from.state.bytes(), backend_->stream());
    }
    const std::int64_t live = from.recurrent ? 0 : tokens - from.position;
    if (live == 0) continue;
    to.rows = backend_->allocate(from.rows.bytes(), backend_->stream());
    to.capacity = from.capacity;
    to.first = from.first;
    to.tokens = live;
    const std::uint64_t row_bytes = 4 * static_cast<std::uint64_t>(from.heads.dim);
    for (int head = 0; head < from.heads.kv; ++head) {  // the live slots only
      const std::uint64_t offset = static_cast<std::uint64_t>(head * from.capacity + from.first) * row_bytes;
      backend_->copy(to.rows.as<std::byte>() + offset, from.rows.as<std::byte>() + offset,
                     static_cast<std::uint64_t>(live) * row_bytes, backend_->stream());
    }
  }
  for (const gpu::TailOrigin& origin : other.origins_) {
    if (std::min(origin.end, tokens) > oldest) origins_.push_back({origin.cache, std::min(origin.end, tokens)});
  }
  if (origins_.size() >= kOrigins) origins_.erase(origins_.begin() + 1);
  origins_.push_back(new_origin());
}

Cache Cache::fork() const {
  return Cache(*this, store_.fork(), tokens());
}

Cache Cache::fork_at(std::int64_t tokens) const {
  if (tokens < rewinds_to() || tokens > this->tokens()) {
    throw std::logic_error("Cache::fork_at: its tails do not reach back that far");
  }
  return Cache(*this, store_.fork(), tokens);
}

std::int64_t Cache::rewinds_to() const {
  std::int64_t least = 0;
  for (const Tail& tail : tails_) {
    const std::int64_t stays = tail.window > 0 ? tail.window : options_.window;  // of a tail that has let something go
    std::int64_t from = tail.position == 0 ? 0 : tail.position + stays;
    if (tail.recurrent || from > tokens()) from = tokens();
    least = std::max(least, from);
  }
  return least;
}

gpu::CacheView Cache::view(int layer) const {
  const Tail& tail = tails_[static_cast<std::size_t>(layer)];
  gpu::CacheView view;
  view.kv_heads = tail.heads.kv;
  view.head_dim = tail.heads.dim;
  if (tail.store_layer >= 0) {
    view.layer = tail.store_layer;
    view.layers = store_.shape().layers;
    view.store = store_.layer(tail.store_layer);
    view.shard = options_.shard;
    view.value_sum = tail.value_sum;
    if (!tail.spread.empty()) view.store.spread = tail.spread;  // the order of planes is that of one machine
  }
  view.origins = origins_;
  view.tail = {tail.rows.as<f16>(), tail.capacity, tail.first, tail.tokens + tail.pending, tail.position};
  return view;
}

std::vector<gpu::CacheView> Cache::global_views() const {
  std::vector<gpu::CacheView> views;
  for (std::size_t layer = 0; layer < tails_.size(); ++layer) {
    if (tails_[layer].store_layer >= 0) views.push_back(view(static_cast<int>(layer)));
  }
  return views;
}

void Cache::append(int layer, const float* k, const float* v, int T) {
  add(layer, T, [&] { backend_->append(view(layer), k, v, T, backend_->stream()); });
}

void Cache::enter(int layer, const gpu::NewHeads& heads) {
  add(layer, heads.T, [&] { backend_->enter(view(layer), heads, backend_->stream()); });
}

void Cache::add(int layer, int T, const std::function<void()>& write) {
  Tail& tail = tails_[static_cast<std::size_t>(layer)];
  if (tail.pending > 0) abandon();
  make_room(tail, T);
  write();
  tail.pending = T;
  if (!tail.kept_on_device && !held_ && !drafting_) start_spills(layer);
}

void Cache::keep(int kept) {
  for (Tail& tail : tails_) tail.pending = std::min(tail.pending, kept);
  for (std::size_t layer = 0; layer < tails_.size(); ++layer) {
    if (tails_[layer].store_layer >= 0) start_spills(static_cast<int>(layer));
  }
  held_ = false;
}

std::int64_t Cache::tokens_up_to_spill() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Tail& tail : tails_) {
    if (tail.store_layer >= 0) least = std::min(least, options_.block_tokens + options_.window - tail.tokens);
  }
  return std::max<std::int64_t>(1, least);
}

gpu::DeltaState Cache::advance(int layer, int T) {
  Tail& tail = tails_[static_cast<std::size_t>(layer)];
  if (tail.pending > 0) abandon();
  for (gpu::Buffer* memory : {&tail.state, &tail.next}) {
    if (!*memory) *memory = backend_->allocate(recurrent_bytes(delta_), backend_->stream());
  }
  tail.pending = T;
  return {tail.position > 0 ? tail.state.as<float>() : nullptr, tail.next.as<float>()};
}

gpu::DeltaState Cache::advance_again(int layer, int kept) {
  Tail& tail = tails_[static_cast<std::size_t>(layer)];
  tail.pending = kept;
  return {tail.position > 0 ? tail.state.as<float>() : nullptr, tail.next.as<float>()};
}

void Cache::start_spills(int layer) {
  Tail& tail = tails_[static_cast<std::size_t>(layer)];
  const std::int64_t full = tail.full_blocks(tail.pending, options_);
  if (full == 0) return;
  tail.filled = full;
  sum_filled(tail);
  backend_->order(backend_->stream(), backend_->spill_stream());
  const int B = options_.block_tokens;
  for (std::int64_t i = 0; i < full; ++i) {
    if (!options_.shard.owns(tail.position / B + i)) continue;
    gpu::CacheView oldest = view(layer);
    const std::int64_t before = i * B;
    oldest.tail.first += before;
    oldest.tail.position += before;
    oldest.tail.tokens -= before;
    std::byte* const block = spills_.start(layer, next_block(layer));
    backend_->spill(oldest, B, store_.layout(), block, backend_->spill_stream());
  }
}

offload::BlockWriter Cache::next_block(int layer) {
  const auto index = static_cast<std::size_t>(layer);
  if (index >= reserved_.size() || reserved_[index].empty()) return store_.start_block();
  offload::BlockWriter block = std::move(reserved_[index].back());
  reserved_[index].pop_back();
  return block;
}

void Cache::reserve(std::int64_t tokens) {
  give_back();
  std::vector<std::vector<offload::BlockWriter>> reserved(tails_.size());
  try {
    for (std::size_t layer = 0; layer < tails_.size(); ++layer) {
      if (tails_[layer].store_layer < 0) continue;
      const std::int64_t before = tails_[layer].position / options_.block_tokens;
      const std::int64_t full = tails_[layer].full_blocks(tokens, options_);
      const std::int64_t own = options_.shard.own_blocks(before + full) - options_.shard.own_blocks(before);
      reserved[layer] = store_.start_blocks(static_cast<std::size_t>(own));
      std::reverse(reserved[layer].begin(), reserved[layer].end());
    }
  } catch (const Error&) {  // block by block, as far as it goes, and then with an error
    return;
  }
  reserved_ = std::move(reserved);
}

void Cache::make_room(Tail& tail, int T) {
  if (!drafting_) tail.forget();
  if (!tail.has_room(T)) resize(tail, tail.capacity_for(T, options_));
}

void Cache::resize(Tail& tail, std::int64_t capacity) const {
  const std::uint64_t row_bytes = 4 * static_cast<std::uint64_t>(tail.heads.dim);
  const gpu::Stream stream = backend_->stream();
  const bool elsewhere = capacity != tail.capacity;
  gpu::Buffer fresh;
  if (elsewhere) fresh = backend_->allocate(static_cast<std::uint64_t>(tail.heads.kv * capacity) * row_bytes, stream);
  const std::int64_t stride = elsewhere ? capacity : tail.capacity;
  auto* to = elsewhere ? fresh.as<std::byte>() : tail.rows.as<std::byte>();
  for (int head = 0; head < tail.heads.kv && tail.tokens > 0; ++head) {
    backend_->copy(
        to + static_cast<std::uint64_t>(head * stride) * row_bytes,
        tail.rows.as<std::byte>() + static_cast<std::uint64_t>(head * tail.capacity + tail.first) * row_bytes,
        static_cast<std::uint64_t>(tail.tokens) * row_bytes, stream);
  }
  if (elsewhere) {
    tail.rows = std::move(fresh);
    tail.capacity = capacity;
  }
  tail.first = 0;
}

void Cache::commit() {
  std::vector<Spill> spilled = spills_.finish();  // all that can fail comes first and changes nothing
  for (Tail& tail : tails_) {
    const int appended = std::exchange(tail.pending, 0);
    (tail.recurrent ? tail.position : tail.tokens) += appended;
    if (drafting_) {
      if (tail.recurrent && tail.drafted == 0 && appended > 0) std::swap(tail.before_drafts, tail.state);
      tail.drafted += appended;
    }
    if (tail.recurrent && appended > 0) std::swap(tail.state, tail.next);
  }
  for (Spill& spill : spilled) {
    const Tail& tail = tails_[static_cast<std::size_t>(spill.layer)];
    store_.commit(tail.store_layer, std::move(spill.block), options_.block_tokens);
    spilled_bytes_ += store_.layout().block_bytes;
  }
  for (Tail& tail : tails_) {
    take_filled_sums(tail);
    tail.drop(std::exchange(tail.filled, 0) * options_.block_tokens);
  }
}

void Cache::end_drafts() noexcept {
  abandon();
  drafting_ = false;
  for (Tail& tail : tails_) {
    (tail.recurrent ? tail.position : tail.tokens) -= tail.drafted;
    if (tail.recurrent && tail.drafted > 0) std::swap(tail.state, tail.before_drafts);
    tail.drafted = 0;
  }
}

void Cache::shrink() {
  for (Tail& tail : tails_) {
    tail.forget();
    const std::int64_t capacity = tail.capacity_kept(options_);
    if (capacity >= tail.capacity) continue;
    try {
      resize(tail, capacity);
    } catch (const Error&) {  // has no room beside the old one, which serves as well
      return;
    }
  }
}

void Cache::abandon() noexcept {
  spills_.abandon();
  held_ = false;
  for (Tail& tail : tails_) {
    tail.pending = 0;
    tail.filled = 0;
  }
}

std::uint64_t Cache::layer_bytes_on_device(int layer, std::int64_t tokens) const {
  const Tail& tail = tails_[static_cast<std::size_t>(layer)];
  return static_cast<std::uint64_t>((tail.tokens + tokens) * tail.heads.width()) * 4;
}

void Cache::keep_layer_on_device(int layer, std::int64_t tokens) {
  if (tokens < 0 || tokens > std::numeric_limits<int>::max()) {
    fail("{} tokens cannot be kept on the device; use 0 to {}", tokens, std::numeric_limits<int>::max());
  }
  Tail& tail = tails_[static_cast<std::size_t>(layer)];
  if (tail.first + tail.tokens + tokens > tail.capacity) resize(tail, std::max(tail.capacity, tail.tokens + tokens));
  tail.kept_on_device = true;
}

void Cache::flush_layer(int layer) {
  Tail& tail = tails_[static_cast<std::size_t>(layer)];
  tail.kept_on_device = false;
  start_spills(layer);
  commit();
  // As large as it would have been, had it spilled all along.
  const std::int64_t capacity = TailSlots{.tokens = tail.tokens}.capacity_for(0, options_);
  if (capacity < tail.capacity) resize(tail, capacity);
}

void Cache::replace_by(Cache grown) {
  grown.spilled_bytes_ += spilled_bytes_;
  *this = std::move(grown);
}

bool Cache::fits(const ModelConfig& config) const {
  if (tails_.size() != static_cast<std::size_t>(config.layers)) return false;
  for (int layer = 0; layer < config.layers; ++layer) {
    const Tail& tail = tails_[static_cast<std::size_t>(layer)];
    if (tail.window != config.sliding_window[static_cast<std::size_t>(layer)]) return false;
    if (tail.heads != config.heads(layer)) return false;
    if (tail.recurrent != (config.kind(layer) == LayerKind::recurrent)) return false;
  }
  return true;
}

std::uint64_t Cache::device_bytes() const {
  std::uint64_t bytes = 0;
  for (const Tail& tail : tails_)
    bytes += tail.rows.bytes() + tail.state.bytes() + tail.next.bytes() + tail.before_drafts.bytes();
  return bytes;
}

}  // namespace hayloft::runtime
