#include <algorithm>
#include <bit>
#include <cstring>

#include "gpu/cuda/memory/host_pins.h"
#include "gpu/cuda/memory/store_tables.h"
#include "gpu/cuda/memory/upload.h"

namespace hayloft::gpu::cuda {
namespace {

// Expires with the calling thread.
std::shared_ptr<const void> this_thread() {
  thread_local const auto life = std::make_shared<const char>();
  return life;
}

std::vector<BlockRun> runs_of(const std::vector<const std::byte*>& on_device) {
  std::vector<BlockRun> runs;
  for (std::size_t i = 0; i < on_device.size(); ++i) {
    const bool in_place = on_device[i] != nullptr;
    const auto block = static_cast<std::int64_t>(i);
    if (runs.empty() || runs.back().in_place != in_place) runs.push_back({block, block, in_place});
    runs.back().end = block + 1;
  }
  return runs;
}

// Returns the bytes of the ranges of one head in one block; 0 where rows are f16.
std::uint64_t head_range_bytes(const offload::BlockLayout& layout) {
  if (layout.row_format == offload::RowFormat::f16) return 0;
  return static_cast<std::uint64_t>(layout.block_tokens / offload::tokens_per_range(layout.block_tokens)) *
         static_cast<std::uint64_t>(layout.head_dim) * sizeof(offload::ChannelRange);
}

// Calls use(where they begin, head_range_bytes()) for the ranges of each head of a block.
template <class Use>
void each_ranges(const offload::BlockLayout& layout, const std::byte* block, const Use& use) {
  const std::uint64_t bytes = head_range_bytes(layout);
  if (bytes == 0) return;
  for (int head = 0; head < layout.kv_heads; ++head) {
    use(reinterpret_cast<const std::byte*>(channel_ranges(layout, block, head, 0)), bytes);
  }
}

bool same_ranges(const offload::LayerView& view, const std::vector<std::byte>& last) {
  const std::byte* at = last.data();
  bool same = last.size() == head_range_bytes(*view.layout) * static_cast<std::uint64_t>(view.layout->kv_heads);
  each_ranges(*view.layout, view.blocks.back(), [&](const std::byte* ranges, std::uint64_t bytes) {
    same = same && std::memcmp(ranges, at, bytes) == 0;
    at += bytes;
  });
  return same;
}

// [Hkv][blocks][ranges of a block][d]
std::vector<std::byte> gather_ranges(const offload::LayerView& view) {
  const std::uint64_t of_a_head = head_range_bytes(*view.layout) * view.blocks.size();
  std::vector<std::byte> all(of_a_head * static_cast<std::uint64_t>(view.layout->kv_heads));
  for (std::size_t block = 0; block < view.blocks.size(); ++block) {
    std::byte* to = all.data() + block * head_range_bytes(*view.layout);
    each_ranges(*view.layout, view.blocks[block], [&](const std::byte* ranges, std::uint64_t bytes) {
      std::memcpy(to, ranges, bytes);
      to += of_a_head;
    });
  }
  return all;
}

}  // namespace

StoreTables::~StoreTables() {
  for (Table& table : tables_) release(table);
}

std::uint64_t StoreTables::release(Table& table) noexcept {
  if (!table.memory) return 0;
  const std::uint64_t bytes = table.bytes();
  context_.arena.free(table.memory, bytes, table.stream);
  table.memory = nullptr;
  return bytes;
}

bool StoreTables::in_use(const Table& table) const {
  return std::any_of(found_.begin(), found_.end(),
                     [&](const auto& entry) { return entry.second.table == &table && !entry.second.thread.expired(); });
}

void StoreTables::spare(std::uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  std::uint64_t freed = 0;
  for (auto table = tables_.rbegin(); table != tables_.rend() && freed < bytes; ++table) {
    if (!in_use(*table)) freed += release(*table);
  }
}

void StoreTables::locate(Table& table, const offload::LayerView& view) {
  const std::uint64_t generation = context_.pins.generation();
  if (table.generation == generation) return;
  std::vector<const std::byte*> on_device;
  on_device.reserve(table.blocks.size());
  for (const std::byte* block : table.blocks) {
    on_device.push_back(context_.pins.on_device(block, view.layout->block_bytes));
  }
  if (on_device != table.on_device) {
    release(table);
    table.on_device = std::move(on_device);
    table.runs = runs_of(table.on_device);
  }
  table.generation = generation;
}

StoreTables::Table& StoreTables::look_up(const offload::LayerView& view) {
  const auto [first, last] = by_last_block_.equal_range(view.blocks.back());
  const auto found = std::find_if(first, last, [&](const auto& entry) {
    const Table& table = *entry.second;
    return std::equal(table.blocks.begin(), table.blocks.end(), view.blocks.begin(), view.blocks.end()) &&
           std::equal(table.serials.begin(), table.serials.end(), view.serials.begin(), view.serials.end()) &&
           std::equal(table.value_sum.begin(), table.value_sum.end(), view.value_sum.begin(), view.value_sum.end()) &&
           std::equal(table.spread.begin(), table.spread.end(), view.spread.begin(), view.spread.end()) &&
           same_ranges(view, table.last_ranges);
  });
  if (found != last) {
    tables_.splice(tables_.begin(), tables_, found->second);
  } else {
    if (tables_.size() >= kTables) {
      auto oldest = std::prev(tables_.end());
      while (in_use(*oldest) && oldest != tables_.begin()) --oldest;
      const auto [from, to] = by_last_block_.equal_range(oldest->blocks.back());
      by_last_block_.erase(std::find_if(from, to, [&](const auto& entry) { return entry.second == oldest; }));
      release(*oldest);
      tables_.erase(oldest);
    }
    tables_.emplace_front();
    tables_.front().blocks.assign(view.blocks.begin(), view.blocks.end());
    tables_.front().serials.assign(view.serials.begin(), view.serials.end());
    tables_.front().value_sum.assign(view.value_sum.begin(), view.value_sum.end());
    tables_.front().spread.assign(view.spread.begin(), view.spread.end());
    each_ranges(*view.layout, view.blocks.back(), [&](const std::byte* ranges, std::uint64_t bytes) {
      std::vector<std::byte>& all = tables_.front().last_ranges;
      all.insert(all.end(), ranges, ranges + bytes);
    });
    tables_.front().range_bytes = tables_.front().last_ranges.size() * view.blocks.size();
    by_last_block_.emplace(view.blocks.back(), tables_.begin());
    if (tables_.front().range_bytes > 0) release_shorter(tables_.front());
  }
  locate(tables_.front(), view);
  return tables_.front();
}

void StoreTables::release_shorter(const Table& table) noexcept {
  for (std::size_t blocks = 1; blocks < table.blocks.size(); ++blocks) {
    const auto [first, last] = by_last_block_.equal_range(table.blocks[blocks - 1]);
    for (auto entry = first; entry != last; ++entry) {
      Table& other = *entry->second;
      const bool shorter =
          other.blocks.size() == blocks && std::equal(other.blocks.begin(), other.blocks.end(), table.blocks.begin());
      if (shorter && !in_use(other)) release(other);
    }
  }
}

std::vector<BlockRun> StoreTables::runs(const offload::LayerView& view) {
  if (view.blocks.empty()) return {};
  const std::lock_guard lock(mutex_);
  return look_up(view).runs;
}

bool StoreTables::pinned(const offload::LayerView& view) {
  const std::vector<BlockRun> all = runs(view);
  return std::all_of(all.begin(), all.end(), [](const BlockRun& run) { return run.in_place; });
}

void StoreTables::upload(Table& table, const offload::LayerView& view, cudaStream_t stream) {
  // One that kernels may have been lost of is uploaded again where it lies, since others may be about to read it.
  const std::uint64_t lost = context_.graphs.lost();
  if (!table.memory || table.lost != lost) {
    if (!table.memory) {
      table.memory = context_.arena.allocate(table.bytes(), stream);
    } else if (stream != table.stream) {
      context_.order(table.stream, stream);
    }
    table.stream = stream;
    table.lost = lost;
    auto* to = static_cast<std::byte*>(table.memory);
    const auto next = [&](const auto& values) {
      const std::uint64_t bytes = values.size() * sizeof(values[0]);
      cuda::upload(to, values.data(), bytes, stream);
      to += bytes;
    };
    try {
      next(table.on_device);
      next(table.serials);
      next(table.value_sum);
      next(table.spread);
      if (table.range_bytes > 0) {
        to = static_cast<std::byte*>(table.memory) + table.ranges_offset();
        next(gather_ranges(view));
      }
    } catch (...) {  // or half of it would be taken for all
      release(table);
      throw;
    }
  } else if (stream != table.stream) {
    context_.order(table.stream, stream);
    table.stream = stream;
  }
}

DeviceStore StoreTables::find(const offload::LayerView& view, cudaStream_t stream) {
  DeviceStore store;
  if (!view.layout) return store;
  const offload::BlockLayout& layout = *view.layout;
  store.tokens = view.tokens;
  store.kv_heads = layout.kv_heads;
  store.head_dim = layout.head_dim;
  store.block_shift = std::countr_zero(static_cast<unsigned>(layout.block_tokens));
  store.columns = layout.columns;
  store.row_format = layout.row_format;
  store.row_bytes = layout.row_bytes;
  const int range_tokens = offload::tokens_per_range(layout.block_tokens);
  store.range_shift = std::countr_zero(static_cast<unsigned>(range_tokens));
  store.head_bytes = layout.head_bytes;
  store.columns_offset = layout.columns_offset;
  store.column_bytes = layout.column_bytes;
  store.plane_bytes = layout.plane_bytes;
  store.scales_offset = layout.scales_offset;
  store.scale_bytes = layout.scale_bytes;
  if (view.blocks.empty()) return store;

  const std::lock_guard lock(mutex_);
  Table& table = look_up(view);
  std::erase_if(found_, [](const auto& entry) { return entry.second.thread.expired(); });
  found_[std::this_thread::get_id()] = {this_thread(), &table};
  upload(table, view, stream);
  store.blocks = static_cast<const std::byte* const*>(table.memory);
  if (!table.serials.empty()) {
    store.serials = reinterpret_cast<const std::uint64_t*>(store.blocks + table.blocks.size());
  }
  store.value_sum =
      reinterpret_cast<const float*>(store.blocks + table.blocks.size() + table.serials.size());  // all of 8 bytes
  if (!table.spread.empty()) store.spread = store.value_sum + table.value_sum.size();
  if (table.range_bytes > 0) {
    store.ranges = reinterpret_cast<const offload::ChannelRange*>(static_cast<const std::byte*>(table.memory) +
                                                                  table.ranges_offset());
    store.ranges_per_head = static_cast<std::int64_t>(view.blocks.size()) * (layout.block_tokens / range_tokens);
  }
  return store;
}

}  // namespace hayloft::gpu::cuda
