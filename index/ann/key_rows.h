#pragma once

#include <cstdint>

#include "offload/store/store.h"

namespace hayloft::index {

// The keys of one KV head where they lie in the store, at random access. A view: valid as long as the LayerView's.
class KeyRows {
 public:
  KeyRows(const offload::LayerView& view, int head);

  const f16* operator[](std::int64_t position) const {  // K [d], V behind it
    return reinterpret_cast<const f16*>(blocks_[position >> shift_] + offset_) + (position & mask_) * stride_;
  }
  int dim() const { return stride_ / 2; }          // d, a multiple of 8
  std::int64_t tokens() const { return tokens_; }  // positions [0, tokens) are there

 private:
  const std::byte* const* blocks_;
  std::uint64_t offset_;  // of the head in a block, bytes
  std::int64_t tokens_;
  std::int64_t mask_;
  int shift_;
  int stride_;
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
