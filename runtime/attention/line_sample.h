#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "gpu/backend.h"
#include "index/scan/rest_kernels.h"
#include "offload/store/store.h"

namespace hayloft::runtime {

// Returns the positions of [0, limit) that lines from approximate scores to logits are fitted over: all of them up to
// index::line_samples, else one of every so many tokens, a power of two, at random. They depend on the limit alone, and
// stay as it grows until it has doubled.
std::vector<std::int32_t> line_positions(std::int64_t limit);

// Keeps the keys of one global layer at these positions from step to step, near what computes: few are read anew. Not
// thread-safe. Throws std::bad_alloc alone.
class LineSample {
 public:
  // Brings the keys up to `positions` of the store, as many as line_samples; of other positions than
  // [0, store.tokens) it has none, and their places hold anything finite.
  void follow(const offload::LayerView& store, std::span<const std::int32_t> positions,
              const offload::Threads& threads);

  index::LineKeys of(int kv_head) const;
  int count() const { return static_cast<int>(held_.size()); }

  // The keys [Hkv][d][line_row] in memory of the device, and the positions [line_samples] behind them: uploaded where
  // follow() has read any since.
  struct OnDevice {
    const f16* keys;
    const std::int32_t* positions;
  };
  OnDevice on_device(gpu::Backend& backend, gpu::Stream stream);

 private:
  struct Held {
    std::uint64_t block = 0;  // its serial
    std::int32_t position = -1;
    bool operator==(const Held&) const = default;
  };
  void read(const offload::LayerView& store, std::size_t i, int kv_head);

  int kv_heads_ = 0;
  int head_dim_ = 0;
  bool planes_ = false;
  std::vector<Held> held_;
  std::vector<f16> keys_;            // [Hkv][d][line_row], and so the others
  std::vector<std::uint8_t> codes_;  // of planes, as are the ranges
  std::vector<f16> centres_, halves_;
  bool changed_ = true;  // since they were uploaded
  gpu::Buffer device_;
};

// Has a session's samples, by the number of their layer among the global ones.
struct LineSamples {
  std::map<int, LineSample> layers;
};

}  // namespace hayloft::runtime
