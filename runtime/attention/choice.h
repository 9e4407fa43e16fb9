#pragma once

#include <cstdint>
#include <vector>

#include "index/scan/exact_search.h"
#include "runtime/attention/host_tail.h"
#include "runtime/attention/method.h"

// What the methods that choose positions have in common: the newest w positions and the whole tail are attended anyway,
// the others are chosen in the store; and for those that search near the memory, the way from a query to an output.
namespace hayloft::runtime {

struct Choice {
  std::int64_t limit = 0;   // positions [0, limit) may be chosen, all behind them are attended
  std::int64_t tokens = 0;  // S
  int k = 0;                // chosen per list
  int lists = 0;            // Hkv or Hq

  gpu::Attended attended() const;  // but for the positions
  std::uint64_t rows_per_head(
      int kv_heads) const;  // read for each KV head: its lists' choices and what is behind limit
};

// What a method chooses from a cache of this length: k positions per list, as its options have it for the layer, its
// window's newest counted in. `per` is selects_per() of them, but for methods that select in one way only.
Choice choose(const Method& method, const gpu::CacheView& cache, int query_heads, index::SelectPer per);

// SparQ's w where a user has not given one (section 4: a quarter of k).
std::int64_t sparq_window(const MethodOptions& options, std::int64_t tokens, int layer);

// The query of a step, [Hq][d], times `scale`. Waits for the device.
std::vector<float> query_on_host(const Step& step, const float* q, float scale);

struct Chosen {
  std::vector<std::int32_t> positions;  // [lists][k], ascending
  std::vector<float> alpha;             // [Hq], the softmax mass of all that is attended
};

// A search whose softmax goes on from the tail's: positions and alpha. `search` says where, with which weights, and
// takes limit and k from the choice.
Chosen choose_with_mass(const offload::LayerView& view, index::ColumnSearch search, const Choice& choice,
                        const TailScores& tail, const offload::Threads& threads);

// Attends to the choice, whose positions i32 [lists][k] are in device memory, and records it. alpha f32 [Hq], device:
// as gpu::Attended has it; may be null.
void attend_positions(const Step& step, const float* q, const Choice& choice, const std::int32_t* positions,
                      const float* alpha, float* out);

// The same for what was chosen on the host: alpha as SparQ's step 3 unless it is empty, and records it.
void attend_chosen(const Step& step, const float* q, const Choice& choice, const Chosen& chosen, bool mean_value,
                   float* out);

}  // namespace hayloft::runtime
