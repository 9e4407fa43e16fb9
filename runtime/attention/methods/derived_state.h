#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/derived/derived_columns.h"
#include "runtime/attention/method_state.h"

namespace hayloft::runtime {

// The state of a method that keeps columns made from the keys in the store, an entry for every `tokens_per_entry`
// tokens, and searches those in their place. Forks share what both have; copying is forking.
class DerivedState : public MethodState {
 public:
  void sync_with_cache(std::span<const gpu::CacheView> layers, const StateProgress& progress) override;
  std::uint64_t bytes() const override;

  // Covers the store of the layer up to its last whole entry. Valid until sync_with_cache().
  offload::LayerView columns(int layer) const { return columns_[static_cast<std::size_t>(layer)].view(); }

  // Returns what bytes() becomes, but for what a subclass adds.
  static std::uint64_t bytes_of(const AttentionShape& shape, int columns, int tokens_per_entry, std::int64_t tokens);

 protected:
  DerivedState(const AttentionShape& shape, int columns, int tokens_per_entry);
  DerivedState(const DerivedState&) = default;

  // Appends the whole entries that `store` holds and `columns` does not.
  virtual void extend(int layer, const offload::LayerView& store, index::DerivedColumns& columns) const = 0;

 private:
  int tokens_per_entry_;
  std::vector<index::DerivedColumns> columns_;  // [layers]
};

}  // namespace hayloft::runtime
