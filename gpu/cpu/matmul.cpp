#include "gpu/cpu/cpu_backend.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/cpu/elementwise.h"
#include "gpu/cpu/packed.h"
#include "gpu/cpu/packed_int8.h"
#include "gpu/cpu/panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/matmul.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// y [T][stride] for the weight rows [begin, end), four at a time against all T tokens.
template <class T>
void stream_rows(const float* x, int tokens, const T* weights, int cols, int begin, int end, float* y, int stride) {
  const F32 d;
  const std::size_t n = static_cast<std::size_t>(cols);
  NoPrefetch none;  // the weights are read in order, which the processor sees by itself
  int row = begin;
  for (; row + 4 <= end; row += 4) {
    const T* four[4];
    for (int i = 0; i < 4; ++i) four[i] = weights + static_cast<std::size_t>(row + i) * n;
    dot_four(d, four, x, tokens, n, n, y + row, static_cast<std::size_t>(stride), none);
  }
  for (; row < end; ++row) {
    const T* same[4];
    for (int i = 0; i < 4; ++i) same[i] = weights + static_cast<std::size_t>(row) * n;
    for (int t = 0; t < tokens; ++t) {
      HWY_ALIGN float out[4];
      dot_four<1>(d, same, x + t * n, n, n, out, 4, none);
      y[static_cast<std::size_t>(t) * stride + row] = out[0];
    }
  }
}

void stream_matmul_simd(const float* x, int tokens, const Matrix& w, int begin, int end, float* y) {
  switch (w.type) {
    case DType::f32:
      return stream_rows(x, tokens, static_cast<const float*>(w.data), w.cols, begin, end, y, w.rows);
    case DType::f16:
      return stream_rows(x, tokens, static_cast<const f16*>(w.data), w.cols, begin, end, y, w.rows);
    case DType::bf16:
      return stream_rows(x, tokens, static_cast<const bf16*>(w.data), w.cols, begin, end, y, w.rows);
    case DType::packed:  // packed_matmul
      break;
  }
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {
namespace {

HWY_EXPORT(stream_matmul_simd);

// Reading the weights as they are beats laying them down in panels while the tokens' inputs stay in the second-level
// cache, and always when they are very few.
constexpr int kStreamedTokens = 64;
constexpr int kStreamedInputs = 256 << 10;
bool streams(int T, int cols) {
  return T <= CpuBackend::tokens_one_by_one ||
         (T <= kStreamedTokens && static_cast<std::int64_t>(T) * cols <= kStreamedInputs);
}

// Bounds how many tokens pass panels that are laid down once: as many as leave work for all threads, within these.
constexpr int kFewestPanelTokens = 96;
constexpr int kMostPanelTokens = 512;

void add_bias(const float* bias, int T, int rows, int begin, int end, float* y) {
  for (int t = 0; t < T; ++t) add_to(y + static_cast<std::int64_t>(t) * rows + begin, bias + begin, end - begin);
}

// A product in pieces [begin, end) of its units, a grain of them each, which any threads compute.
struct Work {
  std::int64_t units = 0;
  std::int64_t grain = 1;
  std::function<void(std::int64_t begin, std::int64_t end)> run;

  std::int64_t pieces() const { return (units + grain - 1) / grain; }
};

Work stream_matmul(const float* x, int T, const Matrix& w, const float* bias, float* y) {
  // A piece reads at least 64 KiB of weights, so that small matrices do not pay for waking a thread.
  const std::int64_t row_bytes = std::max<std::int64_t>(1, static_cast<std::int64_t>(w.cols) * bytes_of(w.type));
  const std::int64_t grain = std::max<std::int64_t>(1, (64 << 10) / (4 * row_bytes));
  return {(w.rows + 3) / 4, grain, [=, &w](std::int64_t begin, std::int64_t end) {
            const int first = static_cast<int>(4 * begin);
            const int last = static_cast<int>(std::min<std::int64_t>(4 * end, w.rows));
            HWY_DYNAMIC_DISPATCH(stream_matmul_simd)(x, T, w, first, last, y);
            if (bias) add_bias(bias, T, w.rows, first, last, y);
          }};
}

void add_bias_of_tiles(const float* bias, int T, const Matrix& w, std::int64_t begin, std::int64_t end, float* y) {
  if (!bias) return;
  const int last = std::min(static_cast<int>(end) * packed_tile_rows, w.rows);
  add_bias(bias, T, w.rows, static_cast<int>(begin) * packed_tile_rows, last, y);
}

std::int64_t tiles_of(const Matrix& w) {
  return (w.rows + packed_tile_rows - 1) / packed_tile_rows;
}

// As stream_matmul, for packed weights.
Work stream_packed(const float* x, int T, const Matrix& w, const float* bias, float* y) {
  const auto sums = std::make_shared<std::vector<float>>();
  if (w.packing.minimum) {
    sums->resize(static_cast<std::size_t>(T) * static_cast<std::size_t>(w.cols / w.packing.group()));
    sum_groups(x, T, w.cols, w.packing.group(), sums->data());
  }
  const std::int64_t grain =
      std::max<std::int64_t>(1, (64 << 10) / static_cast<std::int64_t>(w.packing.tile_bytes(w.cols)));
  return {tiles_of(w), grain, [=, &w](std::int64_t begin, std::int64_t end) {
            packed_matmul(x, sums->data(), T, w, static_cast<int>(begin), static_cast<int>(end), y);
            add_bias_of_tiles(bias, T, w, begin, end, y);
          }};
}

// Any number of tokens, in whole numbers.
Work multiply_int8(std::shared_ptr<const Int8Inputs> inputs, const MatrixProduct& product) {
  const auto [x, T, of, y, bias] = product;
  const Matrix& w = *of;
  const std::int64_t work = static_cast<std::int64_t>(w.packing.tile_bytes(w.cols)) * std::max(1, T / 4);
  return {tiles_of(w), std::max<std::int64_t>(1, (64 << 10) / work),
          [inputs = std::move(inputs), T, &w, y, bias](std::int64_t begin, std::int64_t end) {
            packed_matmul_int8(*inputs, T, w, static_cast<int>(begin), static_cast<int>(end), y);
            add_bias_of_tiles(bias, T, w, begin, end, y);
          }};
}

Work multiply_panels(const float* x, int T, const Matrix& w, const float* bias, float* y, int threads) {
  constexpr std::int64_t kPiecesPerThread = 2;
  const auto cut = [](std::int64_t n, std::int64_t by) { return (n + by - 1) / by; };
  const std::int64_t panels = cut(w.rows, kPanelRows);
  const std::int64_t blocks =
      std::clamp(cut(kPiecesPerThread * threads, panels), cut(T, kMostPanelTokens), cut(T, kFewestPanelTokens));
  const std::int64_t tokens = cut(cut(T, blocks), kPanelTokens) * kPanelTokens;
  return {panels * blocks, 1, [=, &w](std::int64_t begin, std::int64_t end) {
            for (std::int64_t task = begin; task < end; ++task) {
              const int r0 = static_cast<int>(task / blocks) * kPanelRows;
              const int r1 = std::min(r0 + kPanelRows, w.rows);
              const int t0 = static_cast<int>(std::min<std::int64_t>(task % blocks * tokens, T));
              const int t1 = static_cast<int>(std::min<std::int64_t>(t0 + tokens, T));
              if (t0 == t1) continue;
              panel_matmul(x, w, t0, t1, r0, r1, y);
              if (bias) add_bias(bias, t1 - t0, w.rows, r0, r1, y + static_cast<std::int64_t>(t0) * w.rows);
            }
          }};
}

// Finds the way that each of several products takes. Products of the same inputs, such as those that give q, k and v,
// share what is made of these: they are rounded once.
class Ways {
 public:
  Ways(Products products, const offload::Threads& threads) : products_(products), threads_(threads) {}

  Work work_of(const MatrixProduct& product) {
    const auto [x, T, of, y, bias] = product;
    const Matrix& w = *of;
    const bool packed = w.type == DType::packed;
    if (packed && products_ == Products::int8) return multiply_int8(rounded(product), product);
    if (!streams(T, w.cols)) return multiply_panels(x, T, w, bias, y, threads_.count());
    return packed ? stream_packed(x, T, w, bias, y) : stream_matmul(x, T, w, bias, y);
  }

 private:
  std::shared_ptr<const Int8Inputs> rounded(const MatrixProduct& product) {
    const Matrix& w = *product.w;
    const bool same = of_.w != nullptr && of_.x == product.x && of_.T == product.T && of_.w->cols == w.cols &&
                      of_.w->packing == w.packing;
    if (same) return inputs_;
    of_ = product;
    const auto inputs = std::make_shared<Int8Inputs>(product.T, w.cols, w.packing);
    constexpr std::int64_t kNumbers = 16 << 10;  // of a piece
    threads_.parallel_for((product.T + int8_run - 1) / int8_run, kNumbers / (std::int64_t{int8_run} * w.cols),
                          [&](std::int64_t begin, std::int64_t end) {
                            round_inputs(product.x, static_cast<int>(begin) * int8_run,
                                         std::min(static_cast<int>(end) * int8_run, product.T), w.cols, w.packing,
                                         *inputs);
                          });
    inputs_ = inputs;
    return inputs;
  }

  Products products_;
  const offload::Threads& threads_;
  MatrixProduct of_{};  // whose inputs are these
  std::shared_ptr<const Int8Inputs> inputs_;
};

}  // namespace

// Products that stream the weights sum each token by itself.
int CpuBackend::tokens_verified_at_once(int widest) const {
  return std::clamp(kStreamedInputs / std::max(1, widest), tokens_one_by_one, kStreamedTokens);
}

void CpuBackend::matmul(const float* x, int T, const Matrix& w, const float* bias, float* y, Stream) {
  if (T <= 0 || w.rows <= 0) return;
  const Work work = Ways(products_, threads_).work_of({x, T, &w, y, bias});
  threads_.parallel_for(work.units, work.grain, work.run);
}

void CpuBackend::multiply_each(std::span<const MatrixProduct> products, Stream) {
  Ways ways(products_, threads_);
  std::vector<Work> works;
  std::vector<std::int64_t> first;  // piece of each among those of all
  std::int64_t pieces = 0;
  for (const MatrixProduct& each : products) {
    if (each.T <= 0 || each.w->rows <= 0) continue;
    works.push_back(ways.work_of(each));
    first.push_back(pieces);
    pieces += works.back().pieces();
  }
  threads_.parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const auto after = std::upper_bound(first.begin(), first.end(), piece);
      const auto at = static_cast<std::size_t>(after - first.begin()) - 1;
      const Work& work = works[at];
      const std::int64_t unit = (piece - first[at]) * work.grain;
      work.run(unit, std::min(unit + work.grain, work.units));
    }
  });
}

}  // namespace hayloft::gpu
#endif
