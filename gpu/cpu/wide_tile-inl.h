// Holds a tile of rows widened and its keys turned, for many query heads. Included once per SIMD target.
#if defined(HAYLOFT_GPU_CPU_WIDE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HAYLOFT_GPU_CPU_WIDE_TILE_INL_H_
#undef HAYLOFT_GPU_CPU_WIDE_TILE_INL_H_
#else
#define HAYLOFT_GPU_CPU_WIDE_TILE_INL_H_
#endif

#include <cstddef>

#include "gpu/cpu/attention.h"
#include "gpu/cpu/panel-inl.h"
#include "gpu/cpu/rows.h"
#include "gpu/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Vectors of keys that a query head is multiplied with at once, by what registers hold.
constexpr int kKeyVectors = HWY_MAX_BYTES >= 64 ? 1 : 2;

// Writes n elements f16 to f32.
HWY_INLINE void widen(F32 d, const f16* from, std::size_t n, float* to) {
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load(d, from + i), d, to + i);
  if (i < n) store_part(d, load_part(d, from + i, n - i), n - i, to + i);
}

// Returns which bit of a lane's number tells the two halves apart that store_sums() adds at this depth, its last
// addition first: it adds up in blocks of four lanes, then the blocks.
HWY_INLINE constexpr int lane_bit(int lanes, int depth) {
  const int of_blocks = lanes == 16 ? 2 : lanes == 8 ? 1 : 0;
  return depth < of_blocks ? 2 + depth : depth - of_blocks;
}

// Computes for Q query heads and kKeyVectors vectors of keys what dot_four() and store_sums() add up of the lanes that
// agree with kLane in the first kDepth of these bits, in their order: so that a pair's product has the same bits as
// there. keys f32 [n][kTileRows], q f32 [Q][stride].
template <int Q, int kLane, int kDepth>
HWY_INLINE void sum_lanes(F32 d, const float* keys, const float* q, std::size_t stride, std::size_t n,
                          F32Vec (&sum)[Q][kKeyVectors]) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(F32()));
  if constexpr (1 << kDepth < kLanes) {
    constexpr int kOther = kLane + (1 << lane_bit(kLanes, kDepth));
    F32Vec other[Q][kKeyVectors];
    sum_lanes<Q, kLane, kDepth + 1>(d, keys, q, stride, n, sum);
    sum_lanes<Q, kOther, kDepth + 1>(d, keys, q, stride, n, other);
    for (int i = 0; i < Q; ++i)
      for (int v = 0; v < kKeyVectors; ++v) sum[i][v] = hn::Add(sum[i][v], other[i][v]);
  } else {
    for (int i = 0; i < Q; ++i)
      for (int v = 0; v < kKeyVectors; ++v) sum[i][v] = hn::Zero(d);
    for (std::size_t at = kLane; at < n; at += kLanes) {
      F32Vec key[kKeyVectors];
      for (int v = 0; v < kKeyVectors; ++v) key[v] = hn::Load(d, keys + at * kTileRows + v * kLanes);
      for (int i = 0; i < Q; ++i) {
        const auto x = hn::Set(d, q[i * stride + at]);
        for (int v = 0; v < kKeyVectors; ++v) sum[i][v] = hn::MulAdd(key[v], x, sum[i][v]);
      }
    }
  }
}

// Holds keys f32 [d][kTileRows] and values f32 [kTileRows][padded d] of a tile, in memory that its user owns. What it
// computes has the same bits as dot_four() and weigh_strip().
class WideTile {
 public:
  static std::size_t floats(int head_dim) {
    return static_cast<std::size_t>(padded(head_dim)) * (2 * kTileRows + kTurned);
  }

  WideTile(float* memory, int head_dim)
      : n_(static_cast<std::size_t>(head_dim)),
        stride_(static_cast<std::size_t>(padded(head_dim))),
        values_(memory),
        keys_(values_ + kTileRows * stride_),
        turned_(keys_ + kTileRows * stride_) {}

  // Takes up to kTileRows rows [K | V].
  template <class Prefetch>
  HWY_INLINE void take(const f16* const* rows, int count, Prefetch& prefetch) const {
    const F32 d;
    const auto key = [&](int i) HWY_ATTR {
      float* const to = turned_ + static_cast<std::size_t>(i % kTurned) * stride_;
      widen(d, rows[i], n_, to);
      prefetch.step();
      return static_cast<const float*>(to);
    };
    lay_down(count, static_cast<int>(n_), key, keys_, kTileRows);
    for (int i = 0; i < count; ++i) {
      widen(d, rows[i] + n_, n_, values_ + static_cast<std::size_t>(i) * stride_);
      prefetch.step();
    }
  }

  // Writes scores[query][kTileRows] of `count` keys, and of what stands behind them up to whole vectors.
  template <int Q>
  HWY_NOINLINE void score(int count, const float* q, std::size_t stride, float* scores) const {
    const F32 d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int key = 0; key < count; key += kKeyVectors * lanes) {
      F32Vec sum[Q][kKeyVectors];
      sum_lanes<Q, 0, 0>(d, keys_ + key, q, stride, n_, sum);
      for (int i = 0; i < Q; ++i)
        for (int v = 0; v < kKeyVectors; ++v) hn::StoreU(sum[i][v], d, scores + i * kTileRows + key + v * lanes);
    }
  }

  // Returns whether values are whole panels, as weigh_block() wants them.
  bool weighs_in_blocks() const { return n_ % static_cast<std::size_t>(panel_width()) == 0; }

  // Adds values weighted by p [kBlockRows][kTileRows] to `weighted` of kBlockRows query heads.
  HWY_INLINE void weigh_block(int count, const float* p, float* weighted, std::size_t stride) const {
    for (std::size_t i = 0; i < n_; i += static_cast<std::size_t>(panel_width())) {
      multiply_panel<Sum::goes_on>(BlockRows(), p, kTileRows, values_ + i, stride_, count, weighted + i, stride);
    }
  }

 private:
  static constexpr int kTurned = 4;  // rows that lay_down() turns at once

  std::size_t n_;
  std::size_t stride_;
  float* values_;
  float* keys_;
  float* turned_;
};

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
