#include "runtime/attention/line_sample.h"

#include "offload/store/planes.h"

namespace hayloft::runtime {
namespace {

std::uint32_t mixed_stratum(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace

std::vector<std::int32_t> line_positions(std::int64_t limit) {
  std::int64_t apart = 1;
  while (limit / apart > index::line_samples) apart *= 2;
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < limit / apart; ++i) {
    const std::int64_t within = mixed_stratum(static_cast<std::uint32_t>(i) * 0x9e3779b1u + 1) & (apart - 1);
    positions.push_back(static_cast<std::int32_t>(i * apart + within));
  }
  return positions;
}

void LineSample::follow(const offload::LayerView& store, std::span<const std::int32_t> positions,
                        const offload::Threads& threads) {
  const offload::BlockLayout& layout = *store.layout;
  const bool planes = in_planes(layout.columns);
  if (layout.kv_heads != kv_heads_ || layout.head_dim != head_dim_ || planes != planes_) {
    kv_heads_ = layout.kv_heads;
    head_dim_ = layout.head_dim;
    planes_ = planes;
    held_.clear();
    const auto all = static_cast<std::size_t>(kv_heads_) * static_cast<std::size_t>(head_dim_ * index::line_row);
    keys_.assign(all, f16{});
    codes_.assign(planes ? all : 0, 0);
    centres_.assign(codes_.size(), f16{});
    halves_.assign(codes_.size(), f16{});
    device_ = {};
    changed_ = true;
  }
  held_.resize(positions.size());
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::int32_t position = positions[i];
    if (position < 0 || position >= store.tokens) {
      held_[i] = {};
      continue;
    }
    const auto block = static_cast<std::size_t>(store.block_of(position));
    const Held wanted{store.serials.empty() ? 0 : store.serials[block], position};
    if (wanted.block != 0 && held_[i] == wanted) continue;
    held_[i] = wanted;
    missing.push_back(i);
  }
  if (missing.empty()) return;
  changed_ = true;
  const auto read_all = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      for (const std::size_t i : missing) read(store, i, static_cast<int>(head));
    }
  };
  if (missing.size() == 1) return read_all(0, kv_heads_);
  threads.parallel_for(kv_heads_, 1, read_all);
}

void LineSample::read(const offload::LayerView& store, std::size_t i, int kv_head) {
  const offload::BlockLayout& layout = *store.layout;
  const std::int32_t position = held_[i].position;
  std::vector<f16> space(2 * static_cast<std::size_t>(head_dim_));
  const f16* const key = store.keys(kv_head, position, 1, space.data());
  const std::byte* const block = store.blocks[static_cast<std::size_t>(store.block_of(position))];
  const int slot = position & (layout.block_tokens - 1);
  const int group = planes_ ? offload::tokens_per_scale(layout.columns, layout.block_tokens) : 1;
  for (int c = 0; c < head_dim_; ++c) {
    const std::size_t at =
        static_cast<std::size_t>(kv_head * head_dim_ + c) * static_cast<std::size_t>(index::line_row) + i;
    keys_[at] = key[c];
    if (!planes_) continue;
    codes_[at] = static_cast<std::uint8_t>(offload::code_at(layout, layout.column(block, kv_head, c), slot));
    const offload::PlaneRange& range = offload::plane_ranges(layout, block, kv_head, c)[slot / group];
    centres_[at] = range.centre;
    halves_[at] = range.half;
  }
}

index::LineKeys LineSample::of(int kv_head) const {
  const std::size_t first = static_cast<std::size_t>(kv_head * head_dim_) * static_cast<std::size_t>(index::line_row);
  index::LineKeys keys{keys_.data() + first, nullptr, nullptr, nullptr, count(), head_dim_};
  if (!planes_) return keys;
  keys.codes = codes_.data() + first;
  keys.centres = centres_.data() + first;
  keys.halves = halves_.data() + first;
  return keys;
}

LineSample::OnDevice LineSample::on_device(gpu::Backend& backend, gpu::Stream stream) {
  const std::uint64_t key_bytes = keys_.size() * sizeof(f16);
  if (device_.bytes() == 0) {
    device_ = backend.allocate(key_bytes + index::line_samples * sizeof(std::int32_t), stream);
    changed_ = true;
  }
  auto* const keys = device_.as<std::byte>();
  if (changed_) {
    std::vector<std::int32_t> positions;
    for (const Held& held : held_) positions.push_back(held.position);
    backend.to_device(keys, keys_.data(), key_bytes, stream);
    if (!positions.empty()) {
      backend.to_device(keys + key_bytes, positions.data(), positions.size() * sizeof(std::int32_t), stream);
    }
    changed_ = false;
  }
  return {reinterpret_cast<const f16*>(keys), reinterpret_cast<const std::int32_t*>(keys + key_bytes)};
}

}  // namespace hayloft::runtime
