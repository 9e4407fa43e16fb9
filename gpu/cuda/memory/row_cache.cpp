#include "gpu/cuda/memory/row_cache.h"

#include <algorithm>
#include <bit>

#include "gpu/device_options.h"
#include "offload/error.h"

namespace hayloft::gpu::cuda {
namespace {

// Of a slot with its row: number, use, and its share of `wanted`.
std::uint64_t slot_bytes(std::uint64_t row_bytes) {
  return row_bytes + sizeof(std::uint64_t) + sizeof(std::int32_t) + sizeof(std::uint32_t);
}

}  // namespace

RowCache::Use::~Use() {
  if (!is_done_) cache_->release();
}

RowCache::RowCache(const DeviceContext& context, std::recursive_mutex& mutex, std::uint64_t bytes)
    : context_(context),
      mutex_(mutex),
      most_(bytes == row_cache_rest ? context.arena.budget_bytes() / 32 : bytes),
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
  const std::uint64_t free = budget - std::min(budget, context_.arena.used_bytes());
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
    HAYLOFT_CUDA(
        cudaMemsetAsync(slots_.rows, 0, count * (sizeof(std::uint64_t) + sizeof(std::int32_t)) + wanted, stream_));
  } catch (const Error&) {  // the device has less than its budget says
    release();
  }
  making_ = false;
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
