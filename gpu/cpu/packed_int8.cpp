#include "gpu/cpu/packed_int8.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu/cpu/packed_int8.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "gpu/cpu/packed_int8-inl.h"

#ifndef HAYLOFT_GPU_CPU_MAY_USE_VNNI
#define HAYLOFT_GPU_CPU_MAY_USE_VNNI
namespace hayloft::gpu {
namespace {

// Asking the processor takes microseconds in a virtual machine, so it is asked once.
std::atomic<int> vnni_known = -1;
bool may_use_vnni() {
  int known = vnni_known.load(std::memory_order_relaxed);
  if (known < 0) {
    known = (hwy::SupportedTargets() & HWY_AVX3_DL) != 0 ? 1 : 0;
    vnni_known.store(known, std::memory_order_relaxed);
  }
  return known == 1;
}

}  // namespace
}  // namespace hayloft::gpu
#endif

HWY_BEFORE_NAMESPACE();
namespace hayloft::gpu::HWY_NAMESPACE {

// V vectors of one tile's rows, from row `lane` on, against Q tokens from token `first` on: out [q][row].
template <int Q, int V, template <int, class> class Products, class Bytes>
HWY_NOINLINE void tile_products_int8(F32 d, const Bytes& bytes, const Packing& packing, const std::byte* tile, int lane,
                                     const Int8Inputs& inputs, int first, int cols, float* out) {
  constexpr int kGroups = Bytes::form.groups();
  const int lanes = static_cast<int>(hn::Lanes(d));
  const std::size_t begin = static_cast<std::size_t>(first) * (static_cast<std::size_t>(cols) / kColumns);
  const auto* codes_of_inputs = reinterpret_cast<const std::int32_t*>(inputs.codes.data()) + begin * kDwords;
  const float* factors_of_inputs = inputs.scales.data() + 2 * begin;
  const std::int32_t* starts = inputs.starts.data() + 2 * begin;
  const float* sums = inputs.sums.data() + kGroups * begin;
  F32Vec total[Q][V];
  for (auto& of_token : total)
    for (F32Vec& start : of_token) start = hn::Zero(d);
  each_chunk<V>(d, packing, tile, lane, 0, cols,
                [&](int, const std::byte* chunk, const Factors(&factors)[V]) HAYLOFT_KERNEL_LAMBDA {
                  if (lane == 0) prefetch_ahead<Bytes::form.bits>(chunk, packing);
                  const std::byte* const scales = chunk + Bytes::form.code_bytes();
                  const std::byte* const minima = scales + packing.scale_bytes();
                  U32Vec low[V], high[V];
                  for (int v = 0; v < V; ++v) low[v] = high[v] = hn::Zero(U32());
                  F32Vec part[Q][V];  // of the columns that share a scale
                  each_group<2>([&](auto half) HAYLOFT_KERNEL_LAMBDA {
                    Products<Q, Bytes> products[V];
                    for (int q = 0; q < Q; ++q) {
                      for (int v = 0; v < V; ++v) products[v].begin(q, starts[2 * q + half()]);
                    }
                    each_column<half() * 4, half() * 4 + 4>([&](auto dword) HAYLOFT_KERNEL_LAMBDA {
                      for (int v = 0; v < V; ++v) {
                        const auto codes = bytes.template get<dword()>(chunk, lane + v * lanes, low[v], high[v]);
                        products[v].template add<dword()>(codes, codes_of_inputs);
                      }
                    });
                    constexpr bool kBegins = half() == 0 || kGroups == 2, kEnds = half() == 1 || kGroups == 2;
                    for (int q = 0; q < Q; ++q) {
                      const auto factor = hn::Set(d, factors_of_inputs[2 * q + half()]);
                      for (int v = 0; v < V; ++v) {
                        const auto sum = products[v].sum(d, q, starts[2 * q + half()]);
                        part[q][v] = kBegins ? hn::Mul(sum, factor) : hn::MulAdd(sum, factor, part[q][v]);
                      }
                    }
                    if constexpr (kEnds) {
                      constexpr int kFirst = kGroups == 2 ? half() : 0;  // half of the weights' group
                      for (int v = 0; v < V; ++v) {
                        const auto scale = load_scales(d, packing, scales, kFirst, lane + v * lanes, factors[v].scale);
                        for (int q = 0; q < Q; ++q) total[q][v] = hn::MulAdd(scale, part[q][v], total[q][v]);
                      }
                      if (packing.minimum) {
                        for (int v = 0; v < V; ++v) {
                          const auto minimum =
                              load_scales(d, packing, minima, kFirst, lane + v * lanes, factors[v].minimum);
                          for (int q = 0; q < Q; ++q) {
                            total[q][v] = hn::MulAdd(minimum, hn::Set(d, sums[kGroups * q + kFirst]), total[q][v]);
                          }
                        }
                      }
                    }
                  });
                  codes_of_inputs += Q * kDwords;
                  factors_of_inputs += 2 * Q;
                  starts += 2 * Q;
                  sums += kGroups * Q;
                });
  for (int q = 0; q < Q; ++q)
    for (int v = 0; v < V; ++v) hn::StoreU(total[q][v], d, out + q * kRows + lane + v * lanes);
}

template <template <int, class> class Products, class Bytes>
void multiply_int8(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
  constexpr int kTokens = 256;  // whose inputs stay in the second-level cache while the tiles pass
  constexpr int kMost = Products<1, Bytes>::most;
  const F32 d;
  const Bytes bytes(w.packing);
  HWY_ALIGN float out[kMost * kRows];
  const auto run = [&](auto count, const std::byte* tile, int rows, int first, float* to) HWY_ATTR {
    constexpr int kVectors = count() == 1 ? kVectorsAtOnce : 1;
    for (int lane = 0; lane < kRows; lane += kVectors * static_cast<int>(hn::Lanes(d))) {
      tile_products_int8<count(), kVectors, Products>(d, bytes, w.packing, tile, lane, inputs, first, w.cols, out);
    }
    for (int i = 0; i < count(); ++i) {
      std::memcpy(to + static_cast<std::size_t>(first + i) * w.rows, out + i * kRows,
                  static_cast<std::size_t>(rows) * sizeof(float));
    }
  };
  for (int block = 0; block < tokens; block += kTokens) {
    const int last = std::min(block + kTokens, tokens);
    for (int tile = begin; tile < end; ++tile) {
      const std::byte* const from =
          static_cast<const std::byte*>(w.data) + static_cast<std::size_t>(tile) * w.packing.tile_bytes(w.cols);
      const int rows = std::min(kRows, w.rows - tile * kRows);
      float* const to = y + static_cast<std::ptrdiff_t>(tile) * kRows;
      for_each_int8_run<kMost>(block, last, [&](auto count, int t) HWY_ATTR { run(count, from, rows, t, to); });
    }
  }
}

template <template <int, class> class Products>
void multiply_any_int8(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
  switch (w.packing.bits) {
    case 2:
      return multiply_int8<Products, Bytes<2, false>>(inputs, tokens, w, begin, end, y);
    case 3:
      return multiply_int8<Products, Bytes<3, false>>(inputs, tokens, w, begin, end, y);
    case 4:
      if (w.packing.by_table) return multiply_int8<Products, Bytes<4, true>>(inputs, tokens, w, begin, end, y);
      return multiply_int8<Products, Bytes<4, false>>(inputs, tokens, w, begin, end, y);
    case 5:
      return multiply_int8<Products, Bytes<5, false>>(inputs, tokens, w, begin, end, y);
    case 6:
      return multiply_int8<Products, Bytes<6, false>>(inputs, tokens, w, begin, end, y);
    default:
      return multiply_int8<Products, Bytes<8, false>>(inputs, tokens, w, begin, end, y);
  }
}

void packed_matmul_int8_simd(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
#if HAYLOFT_VNNI
  if (may_use_vnni()) return multiply_any_int8<VnniProducts>(inputs, tokens, w, begin, end, y);
#endif
  multiply_any_int8<Products>(inputs, tokens, w, begin, end, y);
}

// Rounds 16 numbers of x: codes to `bytes`, their sum to *total. Returns the scale.
HWY_INLINE float round_half_chunk(const float* x, std::int8_t* bytes, std::int32_t* total) {
  constexpr float kLeast = 1e-36f;  // below which 127 / largest has no number
  const F32 d;
  const I32 di;
  const hn::RebindToUnsigned<F32> du;
  const hn::Rebind<std::int8_t, F32> d8;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto bits = hn::Zero(du);  // those of magnitudes are in the order of the numbers, with what is not finite above all
  for (int i = 0; i < kColumns / 2; i += lanes) {
    bits = hn::Max(bits, hn::BitCast(du, hn::Abs(hn::LoadU(d, x + i))));
  }
  const auto largest = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(du, bits)));
  const bool finite = std::isfinite(largest), rounds = finite && largest >= kLeast;
  const auto factor = hn::Set(d, rounds ? 127 / largest : 0.0f);
  auto sum = hn::Zero(di);
  for (int i = 0; i < kColumns / 2; i += lanes) {
    const auto v = finite ? hn::LoadU(d, x + i) : hn::Zero(d);
    const auto code = hn::NearestInt(hn::Mul(v, factor));
    hn::StoreU(hn::DemoteTo(d8, code), d8, bytes + i);
    sum = hn::Add(sum, code);
  }
  *total = hn::GetLane(hn::SumOfLanes(di, sum));
  return !finite ? std::numeric_limits<float>::quiet_NaN() : rounds ? largest / 127 : 0;
}

// Puts a chunk's codes into the order of their columns, given as two tables of bytes: each takes 16 columns from the
// one half of the chunk and 16 from the other, and nothing (a set top bit) where the column lies in the other half.
class InOrder {
 public:
  explicit InOrder(int low_bits) {
    for (int i = 0; i < kColumns; ++i) {
      const int column = column_of(low_bits, i), half = kColumns / 2;
      for (int of = 0; of < 2; ++of) {
        from_[of][i] = static_cast<std::uint8_t>(column / half == of ? column % half : 0x80);
      }
    }
  }
  HWY_INLINE void operator()(const std::int8_t* bytes, std::int8_t* codes) const {
    const hn::FixedTag<std::uint8_t, kColumns / 2> d;
    const auto* const in = reinterpret_cast<const std::uint8_t*>(bytes);
    const auto first = hn::Load(d, in), second = hn::Load(d, in + kColumns / 2);
    for (int i = 0; i < kColumns; i += kColumns / 2) {
      const auto code = hn::Or(hn::TableLookupBytesOr0(first, hn::Load(d, from_[0] + i)),
                               hn::TableLookupBytesOr0(second, hn::Load(d, from_[1] + i)));
      hn::StoreU(code, d, reinterpret_cast<std::uint8_t*>(codes) + i);
    }
  }

 private:
  HWY_ALIGN std::uint8_t from_[2][kColumns];
};

// Rounds a token's inputs as those of its run: chunk by chunk, `run` tokens apart.
void round_token(const float* x, std::size_t chunks, const Packing& packing, int zero, const InOrder& in_order, int run,
                 std::size_t cell, Int8Inputs& to) {
  const auto groups = static_cast<std::size_t>(packing.groups());
  for (std::size_t c = 0; c < chunks; ++c, x += kColumns, cell += static_cast<std::size_t>(run)) {
    HWY_ALIGN std::int8_t bytes[kColumns];
    float sum[2];
    for (int half = 0; half < 2; ++half) {
      std::int32_t total = 0;
      const float scale = round_half_chunk(x + 16 * half, bytes + 16 * half, &total);
      to.scales[2 * cell + half] = scale;
      to.starts[2 * cell + half] = -zero * total;
      sum[half] = scale * static_cast<float>(total);
    }
    to.sums[groups * cell] = groups == 2 ? sum[0] : sum[0] + sum[1];
    if (groups == 2) to.sums[groups * cell + 1] = sum[1];
    in_order(bytes, to.codes.data() + cell * kColumns);
  }
}

void round_inputs_simd(const float* x, int begin, int end, int cols, const Packing& packing, Int8Inputs& to) {
#if HAYLOFT_VNNI
  const bool vnni = may_use_vnni();
#else
  const bool vnni = false;
#endif
  const bool signed_bytes = HAYLOFT_PAIRS && !vnni && are_whole_bytes(packing.bits, packing.by_table);
  const int zero = zero_of(packing) - (signed_bytes ? 128 : 0);
  const InOrder in_order(packing.low_bits());
  const std::size_t chunks = static_cast<std::size_t>(cols) / kColumns;
#if HAYLOFT_VNNI
  static_assert(VnniProducts<1, Bytes<4, false>>::most == int8_run);
#endif
  static_assert(Products<1, Bytes<4, false>>::most == int8_run / 2);
  const auto round_run = [&](auto run, int first) {
    for (int q = 0; q < run(); ++q) {
      const auto of_run = static_cast<std::size_t>(first) * chunks + static_cast<std::size_t>(q);
      round_token(x + static_cast<std::ptrdiff_t>(first + q) * cols, chunks, packing, zero, in_order, run(), of_run,
                  to);
    }
  };
  if (vnni) return for_each_int8_run<int8_run>(begin, end, round_run);
  for_each_int8_run<int8_run / 2>(begin, end, round_run);
}

}  // namespace hayloft::gpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hayloft::gpu {

HWY_EXPORT(packed_matmul_int8_simd);
HWY_EXPORT(round_inputs_simd);

Int8Inputs::Int8Inputs(int tokens, int cols, const Packing& packing) {
  const std::size_t n = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(cols),
                    chunks = n / packed_chunk_columns;
  codes.resize(n);
  scales.resize(2 * chunks);
  starts.resize(2 * chunks);
  sums.resize(static_cast<std::size_t>(packing.groups()) * chunks);
}

void round_inputs(const float* x, int begin, int end, int cols, const Packing& packing, Int8Inputs& inputs) {
  HWY_DYNAMIC_DISPATCH(round_inputs_simd)(x, begin, end, cols, packing, inputs);
}

void choose_int8_instructions() {
  vnni_known = -1;
}

void packed_matmul_int8(const Int8Inputs& inputs, int tokens, const Matrix& w, int begin, int end, float* y) {
  HWY_DYNAMIC_DISPATCH(packed_matmul_int8_simd)(inputs, tokens, w, begin, end, y);
}

}  // namespace hayloft::gpu
#endif
