#include "gpu/cpu/panels.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpu/cpu/elementwise.h"
#include "gpu/cpu/packed.h"
#include "gpu/cpu/scratch.h"
#include "gpu/packed.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/panels.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// Says how many columns are summed in registers: 128 rows of them fit the second-level cache, a block of tokens the
// first.
constexpr int kDepth = 512;
constexpr int kFewRows = kBlockRows / 3;  // of the last tokens, which do not fill a block
static_assert(kPanelTokens % kBlockRows == 0);

// Returns how many rows of weights lie side by side in a panel: a tile of packed weights at least, which may be two
// panels for multiply_panel().
HWY_INLINE int panel_stride() {
  return std::max(panel_width(), packed_tile_rows);
}

// Writes four rows f32 [n] to [n][stride], side by side.
HWY_INLINE void turn_four(const float* const (&rows)[4], int n, float* to, std::size_t stride) {
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  const auto pairs = [&](auto a, auto b, float* first, float* second) HWY_ATTR {
    const auto x = hn::BitCast(d64, a), y = hn::BitCast(d64, b);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, x, y)), d, first);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, x, y)), d, second);
  };
  for (; i + 4 <= n; i += 4, to += 4 * stride) {
    const auto r0 = hn::LoadU(d, rows[0] + i), r1 = hn::LoadU(d, rows[1] + i);
    const auto r2 = hn::LoadU(d, rows[2] + i), r3 = hn::LoadU(d, rows[3] + i);
    pairs(hn::InterleaveLower(d, r0, r1), hn::InterleaveLower(d, r2, r3), to, to + stride);
    pairs(hn::InterleaveUpper(d, r0, r1), hn::InterleaveUpper(d, r2, r3), to + 2 * stride, to + 3 * stride);
  }
#endif
  for (; i < n; ++i, to += stride)
    for (int row = 0; row < 4; ++row) to[row] = rows[row][i];
}

// Lays rows [first, last) of weights that are no codes down in a panel, columns [c0, c0 + n). `wide`: room for four
// rows.
HWY_INLINE void lay_rows(const Matrix& w, int first, int last, int c0, int n, float* panel, float* wide) {
  const std::size_t stride = static_cast<std::size_t>(panel_stride());
  for (int row = first; row < last; row += 4) {
    const float* four[4];
    for (int i = 0; i < 4; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(std::min(row + i, last - 1)) * w.cols + c0;
      const auto* const from = static_cast<const std::byte*>(w.data) + at * bytes_of(w.type);
      if (w.type == DType::f32) {
        four[i] = reinterpret_cast<const float*>(from);
      } else {
        widen(from, w.type, n, wide + i * kDepth);
        four[i] = wide + i * kDepth;
      }
    }
    turn_four(four, n, panel + row - first, stride);
  }
}

// Lays the rows [r0, r1) down in panels [][n][stride]; what fills the last one are zeros or a row again.
HWY_INLINE void lay_panels(const Matrix& w, int r0, int r1, int c0, int n, float* panels, float* wide) {
  const int stride = panel_stride();
  for (int row = r0; row < r1; row += stride, panels += static_cast<std::size_t>(n) * stride) {
    const int last = std::min(row + stride, r1);
    const bool packed = w.type == DType::packed;
    const int filled =
        packed ? (last - row + packed_tile_rows - 1) / packed_tile_rows * packed_tile_rows : (last - row + 3) / 4 * 4;
    if (filled < stride) {
      for (int i = 0; i < n; ++i) std::fill(panels + i * stride + filled, panels + (i + 1) * stride, 0.0f);
    }
    if (!packed) {
      lay_rows(w, row, last, c0, n, panels, wide);
      continue;
    }
    for (int at = 0; at < filled; at += packed_tile_rows) {
      unpack_tile(w, (row + at) / packed_tile_rows, c0, c0 + n, panels + at, static_cast<std::size_t>(stride));
    }
  }
}

// Multiplies kRows rows of inputs f32 [][kDepth] with half a panel, of which `rows` and `columns` are asked for, to y.
template <std::size_t kRows>
HWY_INLINE void multiply_block(const float* inputs, const float* panel, int n, int rows, int columns, bool first,
                               float* y, std::size_t y_stride) {
  const std::make_index_sequence<kRows> all;
  const std::size_t stride = static_cast<std::size_t>(panel_stride());
  if (rows >= static_cast<int>(kRows) && columns >= panel_width()) {
    if (first) return multiply_panel<Sum::fresh>(all, inputs, kDepth, panel, stride, n, y, y_stride);
    return multiply_panel<Sum::is_added>(all, inputs, kDepth, panel, stride, n, y, y_stride);
  }
  HWY_ALIGN float part[kRows * 2 * HWY_MAX_BYTES / sizeof(float)];
  const std::size_t width = static_cast<std::size_t>(panel_width());
  multiply_panel<Sum::fresh>(all, inputs, kDepth, panel, stride, n, part, width);
  for (int row = 0; row < std::min<int>(rows, kRows); ++row) {
    float* const to = y + row * y_stride;
    for (int i = 0; i < std::min(columns, panel_width()); ++i)
      to[i] = first ? part[row * width + i] : to[i] + part[row * width + i];
  }
}

void panel_matmul_simd(const float* x, const Matrix& w, int t0, int t1, int r0, int r1, float* y) {
  const int width = panel_width(), stride = panel_stride();
  float* const panels = scratch(static_cast<std::size_t>(kPanelRows + kBlockRows + 4) * kDepth);
  float* const inputs = panels + kPanelRows * kDepth;
  float* const wide = inputs + kBlockRows * kDepth;
  const auto cols = static_cast<std::size_t>(w.cols), rows = static_cast<std::size_t>(w.rows);
  for (int c0 = 0; c0 < w.cols; c0 += kDepth) {
    const int n = std::min(kDepth, w.cols - c0);
    lay_panels(w, r0, r1, c0, n, panels, wide);
    for (int t = t0; t < t1; t += kBlockRows) {
      // Rows as far apart as they are in x can meet in the same few places of the first-level cache.
      const int here = std::min(kBlockRows, t1 - t);
      for (int i = 0; i < here; ++i)
        std::copy_n(x + static_cast<std::size_t>(t + i) * cols + c0, n, inputs + i * kDepth);
      if (here < kBlockRows) std::fill_n(inputs + here * kDepth, (kBlockRows - here) * kDepth, 0.0f);
      for (int row = r0; row < r1; row += width) {
        const float* const panel =
            panels + static_cast<std::size_t>((row - r0) / stride) * n * stride + (row - r0) % stride;
        float* const to = y + static_cast<std::size_t>(t) * rows + row;
        if (here == kBlockRows) {
          multiply_block<kBlockRows>(inputs, panel, n, here, r1 - row, c0 == 0, to, rows);
          continue;
        }
        for (int i = 0; i < here; i += kFewRows) {
          multiply_block<kFewRows>(inputs + i * kDepth, panel, n, here - i, r1 - row, c0 == 0,
                                   to + static_cast<std::size_t>(i) * rows, rows);
        }
      }
    }
  }
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(panel_matmul_simd);

void panel_matmul(const float* x, const Matrix& w, int t0, int t1, int r0, int r1, float* y) {
  HWY_DYNAMIC_DISPATCH(panel_matmul_simd)(x, w, t0, t1, r0, r1, y);
}

}  // namespace hayloft::gpu
#endif
