#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gpu/backend.h"
#include "offload/host/arena.h"
#include "offload/store/planes.h"
#include "offload/store/quantise.h"
#include "offload/store/store.h"

// A cache of random K and V and plain double-precision attention over it: the oracle of the CPU backend's tests.
namespace hayloft::testing {

inline constexpr double eps = std::numeric_limits<float>::epsilon();

inline std::vector<float> normal(std::size_t n, std::uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0, scale);
  std::vector<float> values(n);
  for (float& value : values) value = distribution(random);
  return values;
}

struct CacheShape {
  int kv_heads = 1;
  int head_dim = 64;
  int block_tokens = 64;
  std::int64_t stored = 0;    // tokens in the store; a ragged last block seals it
  std::int64_t tail = 0;      // tokens in the tail
  std::int64_t position = 0;  // of the tail's first token when nothing is stored
  std::uint32_t seed = 1;
  float key_scale = 1;
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  offload::RowFormat rows = offload::RowFormat::f16;
  // Keys as attention has them, which an index can find its way in: a few directions matter, and all have a mean in
  // common.
  bool key_structure = false;
};

class RandomCache {
 public:
  // With a listener (a backend's pinning()) the store lies in chunks small enough to be several.
  explicit RandomCache(const CacheShape& shape, std::shared_ptr<offload::ChunkListener> listener = nullptr)
      : shape_(shape),
        arena_(topology_, budget(std::move(listener))),
        store_(arena_, {1, shape.kv_heads, shape.head_dim, shape.block_tokens, shape.columns, shape.rows}) {
    const std::size_t row = 2 * static_cast<std::size_t>(shape.head_dim);
    const std::int64_t tokens = shape.stored + shape.tail;
    std::mt19937 random(shape.seed);
    std::normal_distribution<float> distribution;
    rows_.resize(static_cast<std::size_t>(shape.kv_heads * tokens) * row);
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const std::size_t c = i % row;
      const bool key = c < row / 2;
      float value = distribution(random) * (key ? shape.key_scale : 1.0f);
      if (key && shape.key_structure) value = value * (c % 8 == 0 ? 3.0f : 0.5f) + (c % 5 == 0 ? 2.0f : 0.0f);
      rows_[i] = to_f16(value);
    }
    for (std::int64_t begin = 0; begin < shape.stored; begin += shape.block_tokens) {
      const int n = static_cast<int>(std::min<std::int64_t>(shape.block_tokens, shape.stored - begin));
      offload::BlockWriter block = store_.start_block();
      for (int head = 0; head < shape.kv_heads; ++head) {
        offload::fill_block(store_.layout(), block.data(), head, row_at(head, begin), static_cast<std::int64_t>(row),
                            n);
      }
      store_.commit(0, std::move(block), n);
    }
    attended_ = rows_;
    if (shape.rows != offload::RowFormat::f16) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (std::int64_t at = 0; at < shape.stored; ++at) {
          store_.layer(0).row(head, at, attended_.data() + (row_at(head, at) - rows_.data()));
        }
      }
    }
    // Dead slots around the live ones hold NaN: whoever reads them shows it.
    capacity_ = shape.tail + 2 * dead_slots;
    tail_.assign(static_cast<std::size_t>(shape.kv_heads * capacity_) * row, f16{0x7e00});
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::copy_n(
          row_at(head, shape.stored), static_cast<std::size_t>(shape.tail) * row,
          tail_.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(head * capacity_ + dead_slots) * row));
    }
  }

  gpu::CacheView view() {
    gpu::CacheView view;
    view.kv_heads = shape_.kv_heads;
    view.head_dim = shape_.head_dim;
    view.store = store_.layer(0);
    view.tail = {tail_.data(), capacity_, dead_slots, shape_.tail, first() + shape_.stored};
    return view;
  }

  const std::vector<f16>& tail_rows() const { return tail_; }  // [Hkv][capacity][2 d], dead slots included

  const CacheShape& shape() const { return shape_; }
  std::int64_t first() const { return shape_.stored > 0 ? 0 : shape_.position; }
  std::int64_t tokens() const { return first() + shape_.stored + shape_.tail; }

  // The numbers that are attended to: of integer rows those that their levels stand for.
  double key(int head, std::int64_t position, int i) const { return to_float(attended_at(head, position)[i]); }
  // As a search by columns sees it, of planes the first `planes`.
  double searched_key(int head, std::int64_t position, int i, int planes = offload::plane_count) const {
    const offload::BlockLayout& layout = store_.layout();
    if (layout.columns == offload::ColumnFormat::f16 || position >= shape_.stored) {
      return to_float(row_at(head, position - first())[i]);
    }
    const std::byte* block = store_.layer(0).blocks[static_cast<std::size_t>(position / layout.block_tokens)];
    const auto slot = static_cast<int>(position % layout.block_tokens);
    if (layout.columns == offload::ColumnFormat::planes) {
      const int group = offload::tokens_per_scale(layout.columns, layout.block_tokens);
      return offload::plane_key(offload::code_at(layout, layout.column(block, head, i), slot), planes,
                                offload::plane_ranges(layout, block, head, i)[slot / group]);
    }
    return double{to_float(layout.scales(block, head, i)[slot / offload::BlockLayout::scale_tokens])} *
           offload::level_at(layout.columns, layout.column(block, head, i), slot);
  }
  offload::LayerView stored() const { return store_.layer(0); }
  double half_range(int head, std::int64_t position, int i) const {  // of a position in the store
    const offload::BlockLayout& layout = store_.layout();
    const std::byte* block = store_.layer(0).blocks[static_cast<std::size_t>(position / layout.block_tokens)];
    const int group = offload::tokens_per_scale(layout.columns, layout.block_tokens);
    return to_float(offload::plane_ranges(layout, block, head, i)[position % layout.block_tokens / group].half);
  }
  double value(int head, std::int64_t position, int i) const {
    return to_float(attended_at(head, position)[shape_.head_dim + i]);
  }
  f16& key_bits(int head, std::int64_t tail_token, int i) {
    const std::size_t slot = static_cast<std::size_t>(head * capacity_ + dead_slots + tail_token);
    return tail_[slot * 2 * static_cast<std::size_t>(shape_.head_dim) + static_cast<std::size_t>(i)];
  }

 private:
  static constexpr std::int64_t dead_slots = 3;

  static offload::ArenaOptions budget(std::shared_ptr<offload::ChunkListener> listener) {
    offload::ArenaOptions options;
    options.budget_bytes = std::uint64_t{2} << 30;
    if (listener) options.chunk_bytes = std::uint64_t{1} << 20;
    options.listener = std::move(listener);
    return options;
  }

  const f16* row_at(int head, std::int64_t index) const {
    return rows_.data() + (head * (shape_.stored + shape_.tail) + index) * 2 * shape_.head_dim;
  }

  const f16* attended_at(int head, std::int64_t position) const {
    return attended_.data() + (row_at(head, position - first()) - rows_.data());
  }

  CacheShape shape_;
  offload::Topology topology_;
  offload::Arena arena_;
  offload::Store store_;
  std::vector<f16> rows_;      // [Hkv][tokens][2 d], as they are given to the store
  std::vector<f16> attended_;  // as they are read
  std::vector<f16> tail_;
  std::int64_t capacity_ = 0;
};

inline double dot(const RandomCache& cache, int head, std::int64_t position, const float* q) {
  double sum = 0;
  for (int i = 0; i < cache.shape().head_dim; ++i) sum += q[i] * cache.key(head, position, i);
  return sum;
}

struct Expected {
  std::vector<double> y;  // [d]
  double tolerance = 0;   // for every component of y
};

// softmax(q . K / sqrt(d)) V over the given positions.
//
// Tolerance: an f32 score of d products is off by at most (d + 4) eps sum|q_i k_i| / sqrt(d), whatever the order of
// summation; exp adds 2e-7 and the rounding of its argument, half an ulp of the scores' range. A weight is then off by
// that factor relatively, and so is the sum of all: twice. Summing n weighted values in f32 adds n eps / 2 in the worst
// case, never more than 2,048 additions in a row here.
inline Expected attention(const RandomCache& cache, int head, const float* q,
                          const std::vector<std::int64_t>& positions) {
  const int d = cache.shape().head_dim;
  const double eps = std::numeric_limits<float>::epsilon();
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  std::vector<double> s(positions.size());
  double largest = -std::numeric_limits<double>::infinity();
  double smallest = std::numeric_limits<double>::infinity();
  double score_error = 0;
  double largest_value = 0;
  for (std::size_t n = 0; n < positions.size(); ++n) {
    s[n] = dot(cache, head, positions[n], q) * scale;
    largest = std::max(largest, s[n]);
    smallest = std::min(smallest, s[n]);
    double magnitude = 0;
    for (int i = 0; i < d; ++i) {
      magnitude += std::fabs(q[i] * cache.key(head, positions[n], i));
      largest_value = std::max(largest_value, std::fabs(cache.value(head, positions[n], i)));
    }
    score_error = std::max(score_error, (d + 4) * eps / 2 * magnitude * scale);
  }
  Expected expected;
  expected.y.assign(static_cast<std::size_t>(d), 0.0);
  double sum = 0;
  for (std::size_t n = 0; n < positions.size(); ++n) {
    const double p = std::exp(s[n] - largest);
    sum += p;
    for (int i = 0; i < d; ++i) expected.y[static_cast<std::size_t>(i)] += p * cache.value(head, positions[n], i);
  }
  for (double& y : expected.y) y /= sum;
  const double weight_error = score_error + 2e-7 + eps / 2 * (largest - smallest);
  const double summands = std::min<double>(static_cast<double>(positions.size()), 2048) + 8;
  expected.tolerance = largest_value * (2 * weight_error + summands * eps / 2);
  return expected;
}

inline std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(std::max<std::int64_t>(0, end - begin)));
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

}  // namespace hayloft::testing
