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

// Lays the rows [r0, r1) down in panels [][n][stride] of the columns [c0, c0 + n). `wide` has room for four rows.
HWY_INLINE void lay_panels(const Matrix& w, int r0, int r1, int c0, int n, float* panels, float* wide) {
  const int stride = panel_stride();
  const auto floats = static_cast<std::size_t>(stride);
  for (int first = r0; first < r1; first += stride, panels += static_cast<std::size_t>(n) * floats) {
    const int count = std::min(stride, r1 - first);
    if (w.type == DType::packed) {
      int done = 0;
      for (; done < count; done += packed_tile_rows) {
        unpack_tile(w, (first + done) / packed_tile_rows, c0, c0 + n, panels + done, floats);
      }
      fill_up(panels, n, done, floats);
      continue;
    }
    const auto row = [&](int i) HWY_ATTR -> const float* {
      const std::int64_t at = static_cast<std::int64_t>(first + i) * w.cols + c0;
      if (w.type == DType::f32) return static_cast<const float*>(w.data) + at;
      float* const to = wide + i % 4 * kDepth;
      widen(static_cast<const std::byte*>(w.data) + at * bytes_of(w.type), w.type, n, to);
      return to;
    };
    lay_down(count, n, row, panels, floats);
  }
}

// Multiplies kRows rows of inputs f32 [][kDepth] with two vectors of a panel's columns, to y; of the products `rows`
// and `columns` are asked for.
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
