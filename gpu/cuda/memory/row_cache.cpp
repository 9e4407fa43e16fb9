#include "gpu/cuda/memory/row_cache.h"

#include <algorithm>
#include <bit>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "gpu/device_options.h"
#include "offload/error.h"

namespace hayloft::gpu::cuda {
namespace {

// Returns the bytes of a slot with its row: number, use, and its share of `wanted`.
std::uint64_t slot_bytes(std::uint64_t row_bytes) {
  return row_bytes + sizeof(std::uint64_t) + sizeof(std::int32_t) + sizeof(std::uint32_t);
}

}  // namespace

RowCache::Use::~Use() {
  if (!is_done_) cache_->release();
}

RowCache::RowCache(const DeviceContext& context, std::recursive_mutex& mutex, const AheadColumns& ahead,
                   std::uint64_t bytes)
    : context_(context),
      mutex_(mutex),
      ahead_(ahead),
      most_(bytes == row_cache_rest ? context.arena.budget_bytes() / 32 : bytes),
      lost_(context.graphs),
      stream_(context.compute) {}

RowCache::~RowCache() {
  release();
}

std::uint64_t RowCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void RowCache::become(cudaStream_t stream) {
  if (stream != stream_) context_.order(stream_, stream);
  stream_ = stream;
}

bool RowCache::fits(const offload::BlockLayout& layout) const {
  return memory_ != nullptr && slots_.row_bytes == layout.row_bytes && heads_ == layout.kv_heads;
}

std::unique_ptr<RowCache::Use> RowCache::use(const offload::LayerView& view, cudaStream_t stream) {
  if (most_ == 0 || view.blocks.empty() || view.serials.size() != view.blocks.size()) return {};
  std::unique_lock lock(mutex_);
  become(stream);
  ++uses_;
  if (lost_.any()) release();
  if (!fits(*view.layout)) {
    release();
    if (tried_ == 0 || uses_ - tried_ > kPatience) make(*view.layout);
  }
  if (!memory_) return {};
  if (--now_ == INT32_MIN) release();  // the next use begins anew
  if (!memory_) return {};
  return std::unique_ptr<Use>(new Use(*this, std::move(lock)));
}

void RowCache::make(const offload::BlockLayout& layout) {
  tried_ = uses_;
  const std::uint64_t budget = context_.arena.budget_bytes();
  const std::uint64_t used = context_.arena.used_bytes();
  const std::uint64_t free = budget - std::min(budget, used - std::min(used, ahead_.bytes()));
  const std::uint64_t most = std::min(most_, free / 2);
  const std::uint64_t slot = slot_bytes(layout.row_bytes);
  const std::uint64_t sets = most / slot / kRowWays / static_cast<unsigned>(layout.kv_heads);
  if (sets == 0) return;
  // A slot's number, of all heads, has 30 bits.
  const std::uint64_t most_sets = (std::uint64_t{1} << 30) / kRowWays / static_cast<unsigned>(layout.kv_heads);
  slots_.sets = static_cast<std::uint32_t>(std::bit_floor(std::min(sets, most_sets)));
  slots_.row_bytes = layout.row_bytes;
  heads_ = layout.kv_heads;
  const std::uint64_t count = std::uint64_t{slots_.sets} * static_cast<unsigned>(heads_) * kRowWays;
  const std::uint64_t wanted = count / kRowWays * sizeof(std::uint32_t);
  making_ = true;
  try {
    memory_ = context_.arena.allocate(count * slot, stream_);
    bytes_ = count * slot;
    slots_.data = static_cast<std::byte*>(memory_);
    slots_.rows = reinterpret_cast<std::uint64_t*>(slots_.data + count * layout.row_bytes);
    slots_.used = reinterpret_cast<std::int32_t*>(slots_.rows + count);
    slots_.wanted = reinterpret_cast<std::uint32_t*>(slots_.used + count);
    now_ = 0;
    HAYLOFT_CUDA(cudaMemsetAsync(slots_.rows, 0, count * (sizeof(std::uint64_t) + sizeof(std::int32_t)) + wanted,
                                 in_order(stream_)));
  } catch (const Error&) {  // the device has less than its budget says
    release();
  }
  making_ = false;
}

std::vector<std::vector<std::int32_t>> RowCache::positions(const offload::LayerView& view) {
  const std::lock_guard lock(mutex_);
  if (view.serials.size() != view.blocks.size() || !fits(*view.layout)) return {};
  const std::size_t of_head = std::size_t{slots_.sets} * kRowWays;
  const std::size_t count = of_head * static_cast<std::size_t>(heads_);
  std::vector<std::uint64_t> rows(count);
  std::vector<std::int32_t> used(count);
  HAYLOFT_CUDA(
      cudaMemcpyAsync(rows.data(), slots_.rows, count * sizeof rows[0], cudaMemcpyDeviceToHost, in_order(stream_)));
  HAYLOFT_CUDA(
      cudaMemcpyAsync(used.data(), slots_.used, count * sizeof used[0], cudaMemcpyDeviceToHost, in_order(stream_)));
  HAYLOFT_CUDA(cudaStreamSynchronize(stream_));

  const auto block_tokens = static_cast<std::uint64_t>(view.layout->block_tokens);
  std::unordered_map<std::uint64_t, std::uint64_t> first_of;  // of a block, by serial
  for (std::size_t block = 0; block < view.serials.size(); ++block) {
    first_of.emplace(view.serials[block], block * block_tokens);
  }
  std::vector<std::vector<std::int32_t>> positions;
  for (int head = 0; head < heads_; ++head) {
    std::vector<std::pair<std::int32_t, std::int32_t>> by_use;  // and position
    for (std::size_t slot = of_head * static_cast<std::size_t>(head), end = slot + of_head; slot < end; ++slot) {
      // RowSlots::rows
      const auto block = first_of.find(rows[slot] / block_tokens / static_cast<unsigned>(heads_));
      if (rows[slot] == 0 || block == first_of.end()) continue;
      const std::uint64_t position = block->second + rows[slot] % block_tokens;
      if (static_cast<std::int64_t>(position) >= view.tokens) continue;
      by_use.emplace_back(used[slot], static_cast<std::int32_t>(position));
    }
    std::sort(by_use.begin(), by_use.end());  // uses fall
    std::vector<std::int32_t>& of_this = positions.emplace_back();
    std::unordered_set<std::int32_t> seen;  // several slots may hold one row
    for (const auto& [use, position] : by_use) {
      if (seen.insert(position).second) of_this.push_back(position);
    }
  }
  return positions;
}

void RowCache::release() noexcept {
  if (memory_) context_.arena.free(memory_, bytes_, stream_);
  memory_ = nullptr;
  bytes_ = 0;
  slots_ = {};
}

std::uint64_t RowCache::spare() noexcept {
  const std::lock_guard lock(mutex_);
  const std::uint64_t freed = making_ ? 0 : bytes_;
  if (freed > 0) {
    release();
    tried_ = uses_;
  }
  return freed;
}

}  // namespace hayloft::gpu::cuda
