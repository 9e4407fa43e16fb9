#include "index/derived/derived_columns.h"

#include <hwy/aligned_allocator.h>

#include <algorithm>

namespace hayloft::index {
namespace {

// Zeroed: kernels read whole vectors, also where fewer entries are there.
std::shared_ptr<std::byte> allocate(std::uint64_t bytes) {
  std::shared_ptr<std::byte> block(reinterpret_cast<std::byte*>(hwy::AllocateAlignedBytes(bytes, nullptr, nullptr)),
                                   [](std::byte* data) { hwy::FreeAlignedBytes(data, nullptr, nullptr); });
  if (block == nullptr) throw std::bad_alloc();
  std::fill_n(block.get(), bytes, std::byte{0});
  return block;
}

}  // namespace

DerivedColumns::DerivedColumns(int kv_heads, int columns, int block_entries) {
  offload::BlockLayout layout;
  layout.kv_heads = kv_heads;
  layout.head_dim = columns;
  layout.block_tokens = block_entries;
  layout.column_bytes = static_cast<std::uint64_t>(block_entries) * sizeof(f16);
  layout.head_bytes = layout.column_bytes * static_cast<std::uint64_t>(columns);
  layout.block_bytes = layout.head_bytes * static_cast<std::uint64_t>(kv_heads);
  layout_ = std::make_shared<const offload::BlockLayout>(layout);
}

DerivedColumns::DerivedColumns(const DerivedColumns& other)
    : layout_(other.layout_), blocks_(other.blocks_), bases_(other.bases_), size_(other.size_) {
  const auto full = static_cast<std::size_t>(size_ / layout_->block_tokens);
  blocks_.resize(full);
  if (full < bases_.size()) {
    blocks_.push_back(allocate(layout_->block_bytes));
    std::copy_n(bases_[full], layout_->block_bytes, blocks_[full].get());
    bases_[full] = blocks_[full].get();
  }
}

std::uint64_t DerivedColumns::bytes() const {
  return blocks_.size() * layout_->block_bytes;
}

DerivedColumns::Space DerivedColumns::space(std::int64_t wanted) {
  const std::int64_t B = layout_->block_tokens;
  const auto block = static_cast<std::size_t>(size_ / B);
  if (block == blocks_.size()) blocks_.push_back(allocate(layout_->block_bytes));
  const std::int64_t slot = size_ % B;
  return {reinterpret_cast<f16*>(blocks_[block].get()) + slot, B, layout_->head_dim,
          static_cast<int>(std::min(wanted, B - slot))};
}

void DerivedColumns::commit(int entries) {
  if (entries > 0 && bases_.size() < blocks_.size()) bases_.push_back(blocks_.back().get());
  size_ += entries;
}

}  // namespace hayloft::index
