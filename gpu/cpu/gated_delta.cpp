#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/cpu/cpu_backend.h"
#include "gpu/cpu/elementwise.h"
#include "gpu/cpu/gated_delta.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/gated_delta.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/simd-inl.h"

// The columns of a head's state do not know of each other: a piece of work is a few of them, which stay in the
// processor's first cache while all tokens of a chunk pass.
HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// `Vectors` vectors of columns of a state [dk][dv], from `before` (null: zeros) to `after`; `part` lanes of the last.
template <int Vectors>
HWY_INLINE void pass_columns(F32 d, const DeltaTokens& tokens, int dk, int dv, std::size_t part, const float* before,
                             float* after) {
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN float s[DeltaShape::most_key_dim * Vectors * hn::MaxLanes(F32())];
  const auto lanes_of = [&](int i) { return i + 1 < Vectors ? lanes : part; };
  const auto load_from = [&](const float* p, int i)
                             HWY_ATTR { return lanes_of(i) == lanes ? load(d, p) : load_part(d, p, part); };
  for (int row = 0; row < dk; ++row) {
    for (int i = 0; i < Vectors; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * lanes;
      const auto kept = before ? load_from(before + static_cast<std::ptrdiff_t>(row) * dv + at, i) : hn::Zero(d);
      hn::Store(kept, d, s + (static_cast<std::size_t>(row) * Vectors) * lanes + at);
    }
  }
  for (int t = 0; t < tokens.count; ++t) {
    const float* const q = tokens.q + t * tokens.stride;
    const float* const k = tokens.k + t * tokens.stride;
    const float* const v = tokens.v + t * tokens.stride;
    const auto keep = hn::Set(d, tokens.keep[t * tokens.heads]);
    const auto beta = hn::Set(d, tokens.beta[t * tokens.heads]);
    F32Vec held[Vectors], given[Vectors];
    for (int i = 0; i < Vectors; ++i) held[i] = given[i] = hn::Zero(d);
    for (int row = 0; row < dk; ++row) {
      float* const own = s + static_cast<std::size_t>(row) * Vectors * lanes;
      const auto key = hn::Set(d, k[row]);
      for (int i = 0; i < Vectors; ++i) {
        const auto kept = hn::Mul(hn::Load(d, own + static_cast<std::size_t>(i) * lanes), keep);
        hn::Store(kept, d, own + static_cast<std::size_t>(i) * lanes);
        held[i] = hn::MulAdd(kept, key, held[i]);
      }
    }
    for (int i = 0; i < Vectors; ++i) {
      held[i] = hn::Mul(hn::Sub(load_from(v + static_cast<std::size_t>(i) * lanes, i), held[i]), beta);
    }
    for (int row = 0; row < dk; ++row) {
      float* const own = s + static_cast<std::size_t>(row) * Vectors * lanes;
      const auto key = hn::Set(d, k[row]);
      const auto query = hn::Set(d, q[row]);
      for (int i = 0; i < Vectors; ++i) {
        const auto now = hn::MulAdd(key, held[i], hn::Load(d, own + static_cast<std::size_t>(i) * lanes));
        hn::Store(now, d, own + static_cast<std::size_t>(i) * lanes);
        given[i] = hn::MulAdd(now, query, given[i]);
      }
    }
    float* const out = tokens.out + t * tokens.out_stride;
    for (int i = 0; i < Vectors; ++i) store_part(d, given[i], lanes_of(i), out + static_cast<std::size_t>(i) * lanes);
  }
  for (int row = 0; row < dk; ++row) {
    for (int i = 0; i < Vectors; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * lanes;
      store_part(d, hn::Load(d, s + (static_cast<std::size_t>(row) * Vectors) * lanes + at), lanes_of(i),
                 after + static_cast<std::ptrdiff_t>(row) * dv + at);
    }
  }
}

// Columns [0, columns) of those that `tokens` and the states begin with, at most columns_at_once().
void pass_columns_simd(const DeltaTokens& tokens, int dk, int dv, int columns, const float* before, float* after) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const auto count = static_cast<std::size_t>(columns);
  const std::size_t vectors = (count + lanes - 1) / lanes, part = count - (vectors - 1) * lanes;
  switch (vectors) {
    case 1:
      return pass_columns<1>(d, tokens, dk, dv, part, before, after);
    case 2:
      return pass_columns<2>(d, tokens, dk, dv, part, before, after);
    case 3:
      return pass_columns<3>(d, tokens, dk, dv, part, before, after);
    default:
      return pass_columns<4>(d, tokens, dk, dv, part, before, after);
  }
}

// Channels [begin, end) of the inputs become what the convolution makes of them, and the newest of them the state's.
void convolve_simd(const DeltaLayer& layer, const float* kept, float* keep, float* inputs, int T, std::int64_t begin,
                   std::int64_t end) {
  const F32 d;
  const std::size_t lanes = hn::Lanes(d);
  const std::int64_t channels = layer.shape.channels();
  const int kernel = layer.shape.kernel, before = kernel - 1;
  HWY_ALIGN float weights[DeltaShape::most_kernel * hn::MaxLanes(F32())];  // of a vector of channels, input by input
  HWY_ALIGN float line[DeltaShape::most_kernel * hn::MaxLanes(F32())];     // their inputs, the oldest first
  const auto at = [&](float* lines, int i) { return lines + static_cast<std::size_t>(i) * lanes; };
  for (std::int64_t c = begin; c < end; c += static_cast<std::int64_t>(lanes)) {
    const std::size_t part = std::min(lanes, static_cast<std::size_t>(end - c));
    const auto load_from = [&](const float* p) HWY_ATTR { return part == lanes ? load(d, p) : load_part(d, p, part); };
    for (int i = 0; i < kernel; ++i) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const std::int64_t channel = c + static_cast<std::int64_t>(std::min(lane, part - 1));
        at(weights, i)[lane] = layer.convolution[channel * kernel + i];
      }
    }
    for (int i = 0; i < before; ++i) hn::Store(kept ? load_from(kept + i * channels + c) : hn::Zero(d), d, at(line, i));
    for (int t = 0; t < T; ++t) {
      float* const own = inputs + t * channels + c;
      hn::Store(load_from(own), d, at(line, before));
      auto sum = hn::Zero(d);
      for (int i = 0; i < kernel; ++i) sum = hn::MulAdd(hn::Load(d, at(weights, i)), hn::Load(d, at(line, i)), sum);
      store_part(d, hn::Mul(sum, sigmoid(d, sum)), part, own);
      for (int i = 0; i < before; ++i) hn::Store(hn::Load(d, at(line, i + 1)), d, at(line, i));
    }
    for (int i = 0; i < before; ++i) store_part(d, hn::Load(d, at(line, i)), part, keep + i * channels + c);
  }
}

int columns_at_once_simd() {
  return static_cast<int>(4 * hn::Lanes(F32()));
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {
namespace {

HWY_EXPORT(convolve_simd);
HWY_EXPORT(pass_columns_simd);
HWY_EXPORT(columns_at_once_simd);

constexpr float kLeastSquare = 1e-6f;         // added to |q|^2 and |k|^2
constexpr std::int64_t kChannelsAtOnce = 64;  // of the convolution

float sigmoid(float x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

float softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// x [n] / sqrt(|x|^2 + kLeastSquare), times `factor`.
void normalise(float* x, int n, float factor) {
  float squares = 0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  scale_by(x, factor / std::sqrt(squares + kLeastSquare), n);
}

}  // namespace

void CpuBackend::gated_delta(const DeltaLayer& layer, const DeltaState& state, float* inputs, const float* a,
                             const float* b, const float* gate, int T, float* out, Stream) {
  require_delta_shape(layer.shape);
  const DeltaShape& shape = layer.shape;
  const std::int64_t channels = shape.channels(), values = shape.values(), own = shape.state_floats();
  const int Hk = shape.key_heads, Hv = shape.value_heads, dk = shape.key_dim, dv = shape.value_dim;
  if (T == 0) return;
  threads_.parallel_for(channels, kChannelsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(convolve_simd)
    (layer, state.before ? state.before + own : nullptr, state.after + own, inputs, T, begin, end);
  });
  std::vector<float> keep(static_cast<std::size_t>(T) * static_cast<std::size_t>(Hv)), beta(keep.size());
  threads_.parallel_for(T, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* const row = inputs + t * channels;
      for (int head = 0; head < Hk; ++head) {
        normalise(row + head * dk, dk, 1 / std::sqrt(static_cast<float>(dk)));
        normalise(row + (Hk + head) * dk, dk, 1);
      }
      for (int head = 0; head < Hv; ++head) {
        const std::int64_t at = t * Hv + head;
        keep[static_cast<std::size_t>(at)] = std::exp(-layer.decay[head] * softplus(a[at] + layer.step_bias[head]));
        beta[static_cast<std::size_t>(at)] = sigmoid(b[at]);
      }
    }
  });
  const int columns = HWY_DYNAMIC_DISPATCH(columns_at_once_simd)();
  const int pieces = (dv + columns - 1) / columns;  // of a head
  threads_.parallel_for(std::int64_t{Hv} * pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const auto head = static_cast<int>(piece / pieces), key_head = shape.key_head_of(head);
      const int first = static_cast<int>(piece % pieces) * columns;
      DeltaTokens tokens;
      tokens.q = inputs + key_head * dk;
      tokens.k = tokens.q + Hk * dk;
      tokens.v = inputs + 2 * Hk * dk + head * dv + first;
      tokens.stride = channels;
      tokens.keep = keep.data() + head;
      tokens.beta = beta.data() + head;
      tokens.heads = Hv;
      tokens.out = out + head * dv + first;
      tokens.out_stride = values;
      tokens.count = T;
      const std::int64_t at = std::int64_t{head} * dk * dv + first;
      HWY_DYNAMIC_DISPATCH(pass_columns_simd)
      (tokens, dk, dv, std::min(columns, dv - first), state.before ? state.before + at : nullptr, state.after + at);
    }
  });
  threads_.parallel_for(T, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> gates(static_cast<std::size_t>(dv));
    for (std::int64_t t = begin; t < end; ++t) {
      for (int head = 0; head < Hv; ++head) {
        const std::int64_t at = t * values + head * dv;
        rms_norm_row(out + at, dv, layer.norm, layer.eps, out + at);
        std::copy_n(gate + at, dv, gates.data());
        silu_mul_to(gates.data(), out + at, dv);
        std::copy_n(gates.data(), dv, out + at);
      }
    }
  });
}

}  // namespace hayloft::gpu
#endif
