#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "offload/store/store.h"

namespace hayloft::index {

// f16 columns of something made from the keys of one layer: projections of every token, bounds of every page. They lie
// as the store's own columns do, so search_columns() reads them; there are no rows and no value sums, and neither the
// number of columns nor their meaning is the head dimension's. Append-only in blocks: a copy shares those that are full
// and copies the one that is being filled. Not thread-safe while it grows; copies may be used from different threads.
class DerivedColumns {
 public:
  // block_entries: a power of two, 16 or more.
  DerivedColumns(int kv_heads, int columns, int block_entries);
  DerivedColumns(const DerivedColumns& other);
  DerivedColumns(DerivedColumns&&) = default;
  DerivedColumns& operator=(const DerivedColumns&) = delete;
  DerivedColumns& operator=(DerivedColumns&&) = default;

  std::int64_t size() const { return size_; }  // entries per column
  std::uint64_t bytes() const;

  // Valid until the next commit(), and while this lives.
  offload::LayerView view() const { return {layout_.get(), bases_, size_, {}}; }

  // Room behind the last entry: `entries` of every column, up to the end of a block.
  struct Space {
    f16* first;  // entry 0 of the room, head 0, column 0
    std::int64_t stride;
    int columns;
    int entries;

    f16* column(int head, int c) const { return first + (std::int64_t{head} * columns + c) * stride; }
  };
  Space space(std::int64_t wanted);  // at most `wanted` entries, one at least
  void commit(int entries);          // that many of the room have been filled

 private:
  std::shared_ptr<const offload::BlockLayout> layout_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<const std::byte*> bases_;  // of blocks_ that hold entries
  std::int64_t size_ = 0;
};

}  // namespace hayloft::index
