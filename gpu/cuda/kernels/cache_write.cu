#include "gpu/cuda/cuda_backend.h"
#include "gpu/cuda/kernels/columns/columns.cuh"
#include "gpu/cuda/kernels/elementwise.cuh"
#include "gpu/cuda/kernels/launch.h"
#include "gpu/cuda/kernels/quantise.cuh"
#include "gpu/cuda/kernels/quantised_rows.cuh"
#include "gpu/cuda/kernels/warp.cuh"
#include "gpu/cuda/memory/host_copy.h"
#include "gpu/cuda/memory/spill_image.h"
#include "gpu/cuda_memory.h"

namespace hayloft::gpu::cuda {
namespace {

// Eight elements per item, one 16-byte store; d is a multiple of 8. k and v may lie anywhere.
__global__ void append_kernel(const float* k, const float* v, int kv_heads, int d, std::int64_t items, f16* rows,
                              std::int64_t capacity, std::int64_t slot) {
  const int pieces = 2 * d / 8;  // of a row
  for (std::int64_t i = global_thread(); i < items; i += all_threads()) {
    const int piece = static_cast<int>(i % pieces);
    const std::int64_t head = i / pieces % kv_heads;
    const std::int64_t token = i / pieces / kv_heads;
    const bool key = piece < pieces / 2;
    const float* const x = (key ? k : v) + (token * kv_heads + head) * d + (key ? piece : piece - pieces / 2) * 8;
    store16(rows + (head * capacity + slot + token) * 2 * d + piece * 8,
            uint4{narrow_pair(x[0], x[1]), narrow_pair(x[2], x[3]), narrow_pair(x[4], x[5]), narrow_pair(x[6], x[7])});
  }
}

constexpr int kSpillTile = offload::BlockLayout::scale_tokens;
constexpr int kTileComponents = 256;  // of wider heads so many go through shared memory at a time
constexpr int kSpillThreads = 256;

// The part of the layout that the kernels of a spill need.
struct BlockShape {
  int head_dim;
  int block_tokens;
  RowFormat rows;
  int range_tokens;  // that share the ranges of integer rows
  std::uint64_t row_bytes, ranges_offset;
  std::uint64_t head_bytes, columns_offset, column_bytes, plane_bytes, scales_offset, scale_bytes, value_sum_offset;
};

// Writes the columns of a tile from its keys in shared memory, [kSpillTile][pitch], those of `components` of them from
// `first_component` on: a warp per component, two tokens per lane; of a block of less than 64 tokens only the first
// lanes have any.
template <offload::ColumnFormat format>
__device__ inline void write_column_tile(const std::uint16_t* keys, int pitch, const BlockShape& shape,
                                         int first_component, int components, std::byte* head) {
  constexpr int level = kTraits<format>.largest_level;
  const int first = static_cast<int>(blockIdx.x) * kSpillTile;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int token = 2 * lane;
  const bool has_tokens = token < shape.block_tokens;
  for (int i = static_cast<int>(threadIdx.x) / kWarp; i < components; i += kSpillThreads / kWarp) {
    const f16 pair[2] = {{keys[token * pitch + i]}, {keys[(token + 1) * pitch + i]}};
    const int c = first_component + i;
    std::byte* const column = head + shape.columns_offset + static_cast<std::uint64_t>(c) * shape.column_bytes;
    std::byte* const tile = column + first * kTraits<format>.bits / 8;
    if constexpr (level == 0) {
      if (has_tokens) ColumnBits<format>::store(tile, lane, pair);
    } else {
      const int most = warp_largest(max(finite_magnitude(pair[0]), finite_magnitude(pair[1])));
      const f16 scale = scale_for({static_cast<std::uint16_t>(most)}, level);
      const int low = quantise(pair[0], scale), high = quantise(pair[1], scale);
      if (has_tokens) ColumnBits<format>::store(tile, lane, low, high);
      if (lane == 0) {
        auto* const scales = reinterpret_cast<f16*>(head + shape.scales_offset + c * shape.scale_bytes);
        scales[blockIdx.x] = scale;
      }
    }
  }
}

// Grid: (tiles of 64 tokens, heads, groups of kTileComponents components where heads are `wide`). Copies the tile's
// rows, but for integer ones, and writes their keys transposed, but for planes, by way of shared memory, so that both
// sides are touched in long runs. `tail` is the first head's oldest row.
template <offload::ColumnFormat format, bool wide>
__global__ void __launch_bounds__(kSpillThreads)
    spill_tile_kernel(const f16* tail, std::int64_t head_stride, int tokens, BlockShape shape, std::byte* image) {
  // One more per row: every other token of one component, which is what lanes ask for, then lies in a bank of its own.
  __shared__ std::uint16_t keys[kSpillTile * (kTileComponents + 1)];
  constexpr bool planes = kTraits<format>.planes > 1;
  const int d = shape.head_dim;
  const int first_component = wide ? static_cast<int>(blockIdx.z) * kTileComponents : 0;
  const int components = wide ? min(kTileComponents, d - first_component) : d, pitch = components + 1;
  const int first = static_cast<int>(blockIdx.x) * kSpillTile;
  const int count = min(kSpillTile, tokens - first);
  const f16* const rows = tail + blockIdx.y * head_stride + static_cast<std::int64_t>(first) * 2 * d;
  std::byte* const head = image + blockIdx.y * shape.head_bytes;

  auto* const own_rows = reinterpret_cast<f16*>(head) + static_cast<std::int64_t>(first) * 2 * d;
  const int pieces = 2 * d / 8;  // of a row, 16 bytes each
  for (int i = static_cast<int>(threadIdx.x); i < count * pieces; i += kSpillThreads) {
    const uint4 bits = load16(rows + static_cast<std::int64_t>(i) * 8);
    const bool copies = !wide || blockIdx.z == 0;
    if (copies && shape.rows == RowFormat::f16) store16(own_rows + static_cast<std::int64_t>(i) * 8, bits);
    const int component = i % pieces * 8 - first_component;
    if (planes || component >= components || (wide && component < 0)) continue;
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    std::uint16_t* const to = keys + i / pieces * pitch + component;
    for (int j = 0; j < 8; ++j) to[j] = static_cast<std::uint16_t>(words[j / 2] >> (j % 2 * 16));
  }
  if constexpr (!planes) {
    for (int i = count * pitch + static_cast<int>(threadIdx.x); i < kSpillTile * pitch; i += kSpillThreads) keys[i] = 0;
    __syncthreads();
    write_column_tile<format>(keys, pitch, shape, first_component, components, head);
  }
}

constexpr int kGroup = 256;           // tokens that share a range
constexpr int kGroupComponents = 64;  // of a block

// Grid: (quantisation groups, groups of 64 components, heads). The keys of a group as bit planes, a warp per component
// and in each of its turns a token per lane, so that a vote is a word of a plane.
__global__ void __launch_bounds__(kSpillThreads)
    spill_planes_kernel(const f16* tail, std::int64_t head_stride, int tokens, BlockShape shape, std::byte* image) {
  constexpr int pitch = kGroupComponents + 2;  // an odd number of words: one component of 32 tokens lies in 32 banks
  constexpr int turns = kGroup / kWarp;
  __shared__ std::uint16_t keys[kGroup * pitch];
  const int first = static_cast<int>(blockIdx.x) * kGroup,
            first_component = static_cast<int>(blockIdx.y) * kGroupComponents;
  const int count = min(kGroup, tokens - first);
  const int components = min(kGroupComponents, shape.head_dim - first_component);
  const std::int64_t row = 2 * shape.head_dim;
  const f16* const rows = tail + blockIdx.z * head_stride + first * row + first_component;
  constexpr int pieces = kGroupComponents / 8;  // 16 bytes each
  for (int i = static_cast<int>(threadIdx.x); i < count * pieces; i += kSpillThreads) {
    const int component = i % pieces * 8;
    if (component >= components) continue;
    const uint4 bits = load16(rows + i / pieces * row + component);
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    std::uint16_t* const to = keys + i / pieces * pitch + component;
    for (int j = 0; j < 8; ++j) to[j] = static_cast<std::uint16_t>(words[j / 2] >> (j % 2 * 16));
  }
  __syncthreads();

  std::byte* const head = image + blockIdx.z * shape.head_bytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int c = static_cast<int>(threadIdx.x) / kWarp; c < components; c += kSpillThreads / kWarp) {
    float x[turns];
    float lo = __builtin_inff(), hi = -__builtin_inff();
    for (int turn = 0; turn < turns; ++turn) {
      const int token = turn * kWarp + lane;
      x[turn] = token < count ? widen(finite({keys[token * pitch + c]})) : 0.0f;
      if (token < count) {
        lo = fminf(lo, x[turn]);
        hi = fmaxf(hi, x[turn]);
      }
    }
    const KeyRange range = plane_range(warp_min(lo), warp_max(hi));
    unsigned word = 0;  // of plane lane / 8 and turn lane % 8
    for (int turn = 0; turn < turns; ++turn) {
      const int code = turn * kWarp + lane < count ? plane_code(x[turn], range) : 0;
      for (int plane = 0; plane < offload::plane_count; ++plane) {
        const unsigned votes = ballot((code >> (offload::plane_count - 1 - plane) & 1) != 0);
        if (lane == plane * turns + turn) word = votes;
      }
    }
    const auto component = static_cast<std::uint64_t>(first_component + c);
    std::byte* const to = head + shape.columns_offset + component * shape.column_bytes +
                          lane / turns * shape.plane_bytes + first / 8 + lane % turns * sizeof word;
    const int token = lane % turns * kWarp;
    if (token + kWarp <= shape.block_tokens) {
      *reinterpret_cast<unsigned*>(to) = word;
    } else if (token < shape.block_tokens) {
      *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(word);
    }
    if (lane == 0) {
      auto* const ranges = reinterpret_cast<unsigned*>(head + shape.scales_offset + component * shape.scale_bytes);
      ranges[blockIdx.x] = range.centre.bits | static_cast<unsigned>(range.half.bits) << 16;
    }
  }
}

// Grid: (ranges of tokens, groups of 32 components, heads). The ranges of the keys of integer rows.
__global__ void __launch_bounds__(kSpillThreads)
    spill_ranges_kernel(const f16* tail, std::int64_t head_stride, int tokens, BlockShape shape, std::byte* image) {
  constexpr int parts = kSpillThreads / kWarp;
  __shared__ float least[parts][kWarp], most[parts][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, part = static_cast<int>(threadIdx.x) / kWarp;
  const int d = shape.head_dim;
  const int component = static_cast<int>(blockIdx.y) * kWarp + lane;
  const int first = static_cast<int>(blockIdx.x) * shape.range_tokens;
  const int count = min(shape.range_tokens, tokens - first);
  const f16* const keys = tail + blockIdx.z * head_stride + static_cast<std::int64_t>(first) * 2 * d + component;
  float lo = __builtin_inff(), hi = -__builtin_inff();
  if (component < d) {
    for (int t = part; t < count; t += parts) {
      const float x = widen(finite(keys[std::int64_t{t} * 2 * d]));
      lo = fminf(lo, x);
      hi = fmaxf(hi, x);
    }
  }
  least[part][lane] = lo;
  most[part][lane] = hi;
  __syncthreads();
  if (part != 0 || component >= d) return;
  for (int i = 1; i < parts; ++i) {
    lo = fminf(lo, least[i][lane]);
    hi = fmaxf(hi, most[i][lane]);
  }
  const offload::ChannelRange range = channel_range(lo, hi);
  auto* const ranges = reinterpret_cast<unsigned*>(image + blockIdx.z * shape.head_bytes + shape.ranges_offset);
  ranges[blockIdx.x * static_cast<unsigned>(d) + static_cast<unsigned>(component)] =
      range.centre.bits | static_cast<unsigned>(range.width.bits) << 16;
}

// Grid: (tiles of 64 tokens, heads). Integer rows under the ranges that the image has by now, a warp per row and two
// elements per lane at a time, so that those of a scale are whole warps, or halves of them.
__global__ void __launch_bounds__(kSpillThreads)
    spill_rows_kernel(const f16* tail, std::int64_t head_stride, int tokens, BlockShape shape, std::byte* image) {
  const int d = shape.head_dim;
  const bool bytes = shape.rows == RowFormat::int8;
  const int n = bytes ? 128 : 8, group = bytes ? 64 : 32;
  const int groups = (d + group - 1) / group;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  std::byte* const head = image + blockIdx.y * shape.head_bytes;
  const int first = static_cast<int>(blockIdx.x) * kSpillTile;
  const int end = min(first + kSpillTile, tokens);
  for (int token = first + warp; token < end; token += kSpillThreads / kWarp) {
    const f16* const from = tail + blockIdx.y * head_stride + static_cast<std::int64_t>(token) * 2 * d;
    std::byte* const row = head + static_cast<std::uint64_t>(token) * shape.row_bytes;
    auto* const scales = reinterpret_cast<f16*>(row + (bytes ? 2 * d : d));
    const auto* const ranges =
        reinterpret_cast<const unsigned*>(head + shape.ranges_offset) + token / shape.range_tokens * d;
    for (int part = 0; part < 2; ++part) {  // K, V
      for (int begin = 0; begin < d; begin += 2 * kWarp) {
        const int c = begin + 2 * lane;
        const bool live = c < d;
        float x[2] = {__builtin_inff(), -__builtin_inff()};  // of none
        if (live) {
          const unsigned pair = *reinterpret_cast<const unsigned*>(from + part * d + c);
          for (int i = 0; i < 2; ++i) {
            x[i] = widen(finite({static_cast<std::uint16_t>(pair >> 16 * i)}));
            if (part == 1) continue;
            const float2 range = widen_pair(ranges[c + i]);
            x[i] = (x[i] - range.x) * (1.0f / range.y);  // widths are powers of two
          }
        }
        float lo = live ? fminf(x[0], x[1]) : x[0], hi = live ? fmaxf(x[0], x[1]) : x[1];
        for (int mask = group / 4; mask > 0; mask /= 2) {
          lo = fminf(lo, shuffle_xor(lo, mask));
          hi = fmaxf(hi, shuffle_xor(hi, mask));
        }
        if (!live) continue;
        const f16 scale = row_scale(n, lo, hi);
        const int low = row_level(n, x[0], scale), high = row_level(n, x[1], scale);
        if (bytes) {
          *reinterpret_cast<std::uint16_t*>(row + part * d + c) =
              static_cast<std::uint16_t>((low & 255) | (high & 255) << 8);
        } else {
          row[(part * d + c) / 2] = static_cast<std::byte>((low & 15) | (high & 15) << 4);
        }
        if (c % group == 0) scales[part * groups + c / group] = scale;
      }
    }
  }
}

// Grid: (groups of 32 components, heads). Sums of V in f64, which holds a sum of up to 8192 values of f16 exactly,
// hence in any order: the multiples of 2^-24 below 2^29.
__global__ void __launch_bounds__(kSpillThreads)
    value_sum_kernel(const f16* tail, std::int64_t head_stride, int tokens, BlockShape shape, std::byte* image) {
  constexpr int parts = kSpillThreads / kWarp;
  __shared__ double sums[parts][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, part = static_cast<int>(threadIdx.x) / kWarp;
  const int d = shape.head_dim;
  const int component = static_cast<int>(blockIdx.x) * kWarp + lane;
  const f16* const values = tail + blockIdx.y * head_stride + d + component;
  double sum = 0;
  if (component < d) {
    for (int t = part; t < tokens; t += parts) sum += static_cast<double>(widen(values[std::int64_t{t} * 2 * d]));
  }
  sums[part][lane] = sum;
  __syncthreads();
  if (part != 0 || component >= d) return;
  for (int i = 1; i < parts; ++i) sum += sums[i][lane];
  reinterpret_cast<float*>(image + blockIdx.y * shape.head_bytes + shape.value_sum_offset)[component] =
      static_cast<float>(sum);
}

}  // namespace

void CudaBackend::append(const CacheView& cache, const float* k, const float* v, int T, Stream queue) {
  const cudaStream_t stream = native(queue);
  const TailView& tail = cache.tail;
  const std::int64_t items = static_cast<std::int64_t>(T) * cache.kv_heads * (2 * cache.head_dim / 8);
  launch("append", append_kernel, strided(context_.multiprocessors, items), stream, k, v, cache.kv_heads,
         cache.head_dim, items, tail.rows, tail.capacity, tail.first + tail.tokens);
}

// Builds the image of some heads of the block and copies it out, then that of the next, all in the order of `stream`:
// copying takes many times as long as building.
void CudaBackend::spill(const CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
                        Stream queue) {
  const cudaStream_t stream = native(queue);
  const TailView& tail = cache.tail;
  const BlockShape shape{layout.head_dim,        layout.block_tokens,
                         layout.row_format,      offload::tokens_per_range(layout.block_tokens),
                         layout.row_bytes,       layout.ranges_offset,
                         layout.head_bytes,      layout.columns_offset,
                         layout.column_bytes,    layout.plane_bytes,
                         layout.scales_offset,   layout.scale_bytes,
                         layout.value_sum_offset};
  const int most = static_cast<int>(
      std::clamp<std::uint64_t>(cuda_spill_bytes / layout.head_bytes, 1, static_cast<std::uint64_t>(layout.kv_heads)));
  const auto lock = context_.spill_image.lock();
  std::byte* const image = context_.spill_image.begin(static_cast<std::uint64_t>(most) * layout.head_bytes, stream);
  const std::int64_t stride = tail.capacity * 2 * layout.head_dim;
  for (int head = 0; head < layout.kv_heads; head += most) {
    const int heads = std::min(most, layout.kv_heads - head);
    const std::uint64_t bytes = static_cast<std::uint64_t>(heads) * layout.head_bytes;
    const f16* const from = tail.rows + head * stride + tail.first * 2 * layout.head_dim;
    // The gaps between the parts, too, are part of the block's checksum.
    HAYLOFT_CUDA(cudaMemsetAsync(image, 0, bytes, in_order(stream)));
    const unsigned y = static_cast<unsigned>(heads);
    const bool wide = layout.head_dim > kTileComponents;
    const unsigned groups = in_planes(layout.columns) ? 1 : blocks_for(layout.head_dim, kTileComponents);
    with_column_format(layout.columns, [&](auto format) {
      constexpr offload::ColumnFormat of = decltype(format)::value;
      launch("spill_tile", wide ? spill_tile_kernel<of, !in_planes(of)> : spill_tile_kernel<of, false>,
             {dim3(blocks_for(tokens, kSpillTile), y, groups), dim3(kSpillThreads)}, stream, from, stride, tokens,
             shape, image);
    });
    if (layout.row_format != RowFormat::f16) {
      const dim3 grid(blocks_for(tokens, shape.range_tokens), blocks_for(layout.head_dim, kWarp), y);
      launch("spill_ranges", spill_ranges_kernel, {grid, dim3(kSpillThreads)}, stream, from, stride, tokens, shape,
             image);
      launch("spill_rows", spill_rows_kernel, {dim3(blocks_for(tokens, kSpillTile), y), dim3(kSpillThreads)}, stream,
             from, stride, tokens, shape, image);
    }
    if (in_planes(layout.columns)) {
      const dim3 grid(blocks_for(tokens, kGroup), blocks_for(layout.head_dim, kGroupComponents), y);
      launch("spill_planes", spill_planes_kernel, {grid, dim3(kSpillThreads)}, stream, from, stride, tokens, shape,
             image);
    }
    launch("value_sum", value_sum_kernel, {dim3(blocks_for(layout.head_dim, kWarp), y), dim3(kSpillThreads)}, stream,
           from, stride, tokens, shape, image);
    copy_to_host(context_.pins, block + static_cast<std::uint64_t>(head) * layout.head_bytes, image, bytes, stream);
  }
}

}  // namespace hayloft::gpu::cuda
