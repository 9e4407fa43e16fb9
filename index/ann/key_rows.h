#pragma once

#include <cstdint>

#include "offload/store/store.h"

namespace hayloft::index {

inline constexpr int most_row_elements = 2 * offload::most_head_dim;

// The keys of one KV head in the store, at random access. A view: valid as long as the LayerView's.
class KeyRows {
 public:
  KeyRows(const offload::LayerView& view, int head);

  // K [d], where it lies if rows are f16, else read into `space`, [2 d].
  const f16* key(std::int64_t position, f16* space) const {
    if (!plain_) return view_.keys(head_, position, 1, space);
    return reinterpret_cast<const f16*>(row(position));
  }
  const std::byte* row(std::int64_t position) const {  // as it is stored
    return blocks_[position >> shift_] + offset_ + static_cast<std::uint64_t>(position & mask_) * row_bytes_;
  }
  std::uint64_t key_bytes() const { return row_bytes_ / 2; }  // what the key of a row takes
  int dim() const { return view_.layout->head_dim; }          // d, a multiple of 8
  std::int64_t tokens() const { return view_.tokens; }        // positions [0, tokens) are there

 private:
  offload::LayerView view_;
  int head_;
  // The view's fields that row() needs, found out once: it runs for every key.
  const std::byte* const* blocks_;
  std::uint64_t offset_;  // of the head in a block, bytes
  std::uint64_t row_bytes_;
  std::int64_t mask_;
  int shift_;
  bool plain_;  // rows are f16
};

// SIMD kernels, dispatched at run time. f32 sums of d products in an order that depends on the processor, but neither
// on n nor on which rows are asked for together.

// out[i] = q . K[positions[i]]; asks for rows ahead, since they lie anywhere.
void score_rows(const KeyRows& rows, const float* q, const std::int32_t* positions, int n, float* out);

// out[i] = q . K[begin + i] for positions [begin, end).
void score_row_range(const KeyRows& rows, const float* q, std::int64_t begin, std::int64_t end, float* out);

// (a - mean) . (b - mean), all [d].
float centred_product(const f16* a, const f16* b, const float* mean, int d);

// out [end - begin][d] = K - mean.
void centred_keys(const KeyRows& rows, std::int64_t begin, std::int64_t end, const float* mean, float* out);

}  // namespace hayloft::index
