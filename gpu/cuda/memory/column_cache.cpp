#include "gpu/cuda/memory/column_cache.h"

#include <algorithm>
#include <utility>

#include "gpu/cuda/memory/column_source.h"
#include "gpu/cuda/memory/upload.h"
#include "gpu/device_options.h"
#include "offload/error.h"

namespace hayloft::gpu::cuda {
namespace {

// Sets a flag for as long as it lives.
struct Building {
  bool& flag;
  explicit Building(bool& of) : flag(of) { flag = true; }
  ~Building() { flag = false; }
  Building(const Building&) = delete;
  Building& operator=(const Building&) = delete;
};

}  // namespace

ColumnCache::Use::~Use() {
  if (cache_) cache_->forget(serials_);
}

ColumnCache::ColumnCache(const DeviceContext& context, std::recursive_mutex& mutex, AheadColumns& ahead,
                         std::uint64_t bytes)
    : context_(context),
      mutex_(mutex),
      ahead_(ahead),
      most_(bytes == column_cache_rest ? context.arena.budget_bytes() - context.arena.budget_bytes() / 8 : bytes),
      lost_(context.graphs),
      stream_(context.compute) {}

ColumnCache::~ColumnCache() {
  for (View& view : views_) release_table(view);
  while (!entries_.empty()) drop(entries_.begin());
}

bool ColumnCache::keeps(const offload::LayerView& view) const {
  return most_ > 0 && !view.blocks.empty() && view.serials.size() == view.blocks.size() &&
         view.layout->block_tokens >= kChunkTokens;
}

std::uint64_t ColumnCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ColumnCache::become(cudaStream_t stream) {
  if (stream != stream_) context_.order(stream_, stream);
  stream_ = stream;
}

const CachedBlock* ColumnCache::known_blocks(const offload::LayerView& view) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_last_.find(view.serials.back());
  if (found == by_last_.end()) return nullptr;
  const View& known = *found->second;
  if (known.serials.size() != view.serials.size() || known.generation != generation_) return nullptr;
  return static_cast<const CachedBlock*>(known.table);
}

std::unique_ptr<ColumnCache::Use> ColumnCache::use(const CacheView& cache, cudaStream_t stream) {
  if (!keeps(cache.store)) return {};
  std::unique_lock lock(mutex_);
  become(stream);
  if (lost_.any()) spare(UINT64_MAX);
  ++uses_;
  layers_ = static_cast<std::uint64_t>(cache.layers);
  View& view = look_up(cache.store);
  view.used = uses_;
  const bool again = view.short_of_room && uses_ - view.built > kPatience * layers_;
  if (view.built == 0 || view.generation != generation_ || again) {
    const Building building(building_);
    try {
      build(view, cache, again);
    } catch (const Error&) {  // the device has less than its budget says
      release_table(view);
      view.short_of_room = true;
    }
    view.generation = generation_;
  }
  if (!view.table) return {};
  return std::unique_ptr<Use>(
      new Use(*this, std::move(lock), static_cast<const CachedBlock*>(view.table), view.slots, view.serials));
}

ColumnCache::View& ColumnCache::look_up(const offload::LayerView& view) {
  const auto found = by_last_.find(view.serials.back());
  if (found != by_last_.end() && found->second->serials.size() == view.serials.size()) {
    views_.splice(views_.begin(), views_, found->second);
    return views_.front();
  }
  if (views_.size() >= kViews) {
    by_last_.erase(views_.back().serials.back());
    release_table(views_.back());
    views_.pop_back();
  }
  // The version with a block less is not likely to be wanted again.
  if (view.serials.size() > 1) {
    const auto shorter = by_last_.find(view.serials[view.serials.size() - 2]);
    if (shorter != by_last_.end()) {
      release_table(*shorter->second);
      views_.erase(shorter->second);
      by_last_.erase(shorter);
    }
  }
  views_.emplace_front();
  views_.front().serials.assign(view.serials.begin(), view.serials.end());
  by_last_[view.serials.back()] = views_.begin();
  return views_.front();
}

void ColumnCache::note_uses() {
  for (const View& view : views_) {
    for (const std::uint64_t serial : view.serials) {
      const auto entry = entries_.find(serial);
      if (entry != entries_.end()) entry->second.used = std::max(entry->second.used, view.used);
    }
  }
}

std::uint64_t ColumnCache::room() const {
  const std::uint64_t most = uses_ - spared_at_ < recent_uses() ? std::min(most_, spared_to_) : most_;
  const std::uint64_t left = most - std::min(most, bytes_);
  const std::uint64_t budget = context_.arena.budget_bytes();
  const std::uint64_t used = context_.arena.used_bytes();
  const std::uint64_t free = budget - std::min(budget, used - std::min(used, ahead_.bytes()));
  return std::min(left, free - std::min(free, budget / 8));
}

int ColumnCache::fair_slots(const RunLayout& layout, std::uint64_t blocks) const {
  // A place has 32 bits for where its slot lies (RunPlaces).
  const std::uint64_t each =
      std::min<std::uint64_t>((bytes_ + room()) / std::max<std::uint64_t>(1, blocks), UINT32_MAX);
  const std::uint64_t fixed = layout.bytes(0) + DeviceArena::alignment;  // what sizes are rounded up to
  if (each <= fixed) return 0;
  const std::uint64_t slot = static_cast<std::uint64_t>(layout.kv_heads) * (layout.slot_bytes() + 2);
  return static_cast<int>(std::min<std::uint64_t>((each - fixed) / slot, static_cast<unsigned>(layout.runs)));
}

// Takes from the blocks that no recent use had, then from those in use that have more than so many slots.
bool ColumnCache::make_room(std::uint64_t bytes, const RunLayout& layout, int slots) {
  if (room() >= bytes) return true;
  note_uses();
  const std::uint64_t old = uses_ - std::min(uses_, recent_uses());
  const auto free_those = [&](const auto& wanted, const auto& before) {
    std::vector<Entries::iterator> some;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (wanted(entry->second)) some.push_back(entry);
    }
    std::sort(some.begin(), some.end(), [&](const auto& a, const auto& b) { return before(*a, *b); });
    for (auto entry = some.begin(); entry != some.end() && room() < bytes; ++entry) drop(*entry);
  };
  free_those([&](const Entry& entry) { return entry.used < old; },
             [](const auto& a, const auto& b) {
               return std::pair(a.second.used, a.first) < std::pair(b.second.used, b.first);
             });
  const std::uint64_t fair = layout.bytes(slots) + DeviceArena::alignment;
  free_those([&](const Entry& entry) { return entry.bytes > fair; },
             [](const auto& a, const auto& b) {
               return std::pair(b.second.bytes, a.first) < std::pair(a.second.bytes, b.first);
             });
  return room() >= bytes;
}

void ColumnCache::add(std::uint64_t serial, const RunLayout& layout, int slots, std::uint64_t before) {
  Entry entry;
  entry.slots = slots;
  entry.bytes = (layout.bytes(slots) + DeviceArena::alignment - 1) / DeviceArena::alignment * DeviceArena::alignment;
  entry.used = uses_;
  entry.memory = context_.arena.allocate(entry.bytes, stream_);
  bytes_ += entry.bytes;
  entries_.emplace(serial, entry);
  HAYLOFT_CUDA(cudaMemsetAsync(entry.memory, 0, layout.data_offset(slots), in_order(stream_)));
  // Runs that are read of the block before are likely to be read of this one.
  if (const auto known = entries_.find(before); known != entries_.end()) {
    const std::uint64_t use = layout.use_bytes();
    check(cudaMemcpyAsync(entry.memory, known->second.memory, use, cudaMemcpyDeviceToDevice, in_order(stream_)),
          "cudaMemcpyAsync", use);
  }
}

void ColumnCache::build(View& view, const CacheView& cache, bool larger) {
  const RunLayout layout(*cache.store.layout);
  release_table(view);
  view.built = uses_;
  view.short_of_room = false;
  note_uses();
  const std::uint64_t old = uses_ - std::min(uses_, recent_uses());
  const auto recent = static_cast<std::uint64_t>(
      std::count_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.second.used >= old; }));
  const auto missing = static_cast<std::uint64_t>(std::count_if(
      view.serials.begin(), view.serials.end(), [&](std::uint64_t serial) { return entries_.count(serial) == 0; }));
  const std::uint64_t all = std::max(view.serials.size() * static_cast<std::uint64_t>(cache.layers), recent + missing);
  const int slots = fair_slots(layout, all);
  if (larger) {  // there may be much more room than there was
    for (const std::uint64_t serial : view.serials) {
      const auto entry = entries_.find(serial);
      if (entry != entries_.end() && 5 * entry->second.slots < 4 * slots) drop(entry);
    }
  }
  // Twice, for making room may free some of these that have more slots than is fair.
  for (int pass = 0; pass < 2; ++pass) {
    std::uint64_t before = 0;
    for (const std::uint64_t serial : view.serials) {
      const bool wanted = slots > 0 && entries_.count(serial) == 0;
      if (wanted && make_room(layout.bytes(slots) + DeviceArena::alignment, layout, slots)) {
        add(serial, layout, slots, before);
      }
      before = serial;
    }
  }
  std::vector<CachedBlock> table;
  bool any = false;
  view.slots = layout.runs;
  for (const std::uint64_t serial : view.serials) {
    const auto entry = entries_.find(serial);
    view.short_of_room = view.short_of_room || entry == entries_.end() || entry->second.slots < layout.runs;
    if (entry == entries_.end()) {
      table.emplace_back();
      view.slots = 0;
      continue;
    }
    table.push_back({static_cast<std::byte*>(entry->second.memory), entry->second.slots});
    view.slots = std::min(view.slots, entry->second.slots);
    any = true;
  }
  if (!any) return;
  view.table = context_.arena.allocate(view.table_bytes(), stream_);
  upload(view.table, table.data(), view.table_bytes(), stream_);
}

ColumnCache::Entries::iterator ColumnCache::drop(Entries::iterator entry) noexcept {
  ahead_.settle(stream_);
  context_.arena.free(entry->second.memory, entry->second.bytes, stream_);
  bytes_ -= entry->second.bytes;
  ++generation_;
  return entries_.erase(entry);
}

void ColumnCache::release_table(View& view) noexcept {
  if (view.table) {
    ahead_.settle(stream_);
    context_.arena.free(view.table, view.table_bytes(), stream_);
  }
  view.table = nullptr;
}

void ColumnCache::forget(const std::vector<std::uint64_t>& serials) noexcept {
  for (const std::uint64_t serial : serials) {
    const auto entry = entries_.find(serial);
    if (entry != entries_.end()) drop(entry);
  }
}

std::vector<float> ColumnCache::run_uses(const offload::LayerView& view) {
  const std::lock_guard lock(mutex_);
  if (!keeps(view)) return {};
  const RunLayout layout(*view.layout);
  for (const std::uint64_t serial : view.serials) {
    const auto entry = entries_.find(serial);
    if (entry == entries_.end()) continue;
    std::vector<float> uses(static_cast<std::size_t>(layout.kv_heads) * static_cast<std::size_t>(layout.runs));
    HAYLOFT_CUDA(cudaMemcpyAsync(uses.data(), entry->second.memory, uses.size() * sizeof(float), cudaMemcpyDeviceToHost,
                                 in_order(stream_)));
    HAYLOFT_CUDA(cudaStreamSynchronize(stream_));
    return uses;
  }
  return {};
}

int ColumnCache::count_uses(const CacheView& cache, std::span<const float> uses, cudaStream_t stream) {
  const std::unique_ptr<Use> blocks = use(cache, stream);
  if (!blocks) return 0;
  const std::uint64_t bytes = uses.size_bytes();
  int slots = INT32_MAX;
  const void* first = nullptr;
  for (const std::uint64_t serial : cache.store.serials) {
    const auto entry = entries_.find(serial);
    if (entry == entries_.end()) continue;
    if (first == nullptr) {
      upload(entry->second.memory, uses.data(), bytes, stream_);
      first = entry->second.memory;
    } else {
      check(cudaMemcpyAsync(entry->second.memory, first, bytes, cudaMemcpyDeviceToDevice, in_order(stream_)),
            "cudaMemcpyAsync", bytes);
    }
    slots = std::min(slots, entry->second.slots);
  }
  blocks->done();
  return first == nullptr ? 0 : slots;
}

std::uint64_t ColumnCache::spare(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (building_ || entries_.empty()) return 0;
  note_uses();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> by_use;  // use, serial
  by_use.reserve(entries_.size());
  for (const auto& [serial, entry] : entries_) by_use.emplace_back(entry.used, serial);
  std::sort(by_use.begin(), by_use.end());
  const std::uint64_t before = bytes_;
  for (const auto& [used, serial] : by_use) {
    if (before - bytes_ >= bytes) break;
    drop(entries_.find(serial));
  }
  spared_at_ = uses_;
  spared_to_ = bytes_;
  return before - bytes_;
}

}  // namespace hayloft::gpu::cuda
