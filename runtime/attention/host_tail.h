#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "gpu/backend.h"

// The tail on the host, for searches near the memory: the store lies there, the newest tokens lie on the device.
namespace hayloft::runtime {

// Values f32 [count] of the device, copied. Waits for them.
std::vector<float> copy_to_host(gpu::Backend& backend, const float* values, std::int64_t count, gpu::Stream stream);

// A copy of one layer's tail, or of the newest part of it, in host memory. Immutable; reading is thread-safe.
class HostTail {
 public:
  // Copies the newest tokens of the tail from the device, all of them unless told otherwise, and waits for it.
  HostTail(gpu::Backend& backend, const gpu::CacheView& cache, gpu::Stream stream,
           std::int64_t newest = std::numeric_limits<std::int64_t>::max());

  // Its tokens, counted from 0, as one block of rows without columns: row(head, t) is token `first() + t` of the
  // sequence, and the searches of index/ take it with KeySource::rows. Valid while this lives and stays where it is.
  offload::LayerView rows() const { return {layout_.get(), {&block_, tokens_ > 0 ? 1u : 0u}, tokens_, {}}; }
  // The same rows as a tail, for the operations of a backend whose device memory is host memory; they only read it.
  gpu::TailView view() { return {memory_.get(), tokens_, 0, tokens_, first_}; }
  int kv_heads() const { return layout_->kv_heads; }
  int head_dim() const { return layout_->head_dim; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t first() const { return first_; }  // absolute position of the first token

 private:
  std::unique_ptr<offload::BlockLayout> layout_;
  std::unique_ptr<f16[]> memory_;  // [Hkv][tokens][2 d]
  const std::byte* block_;
  std::int64_t tokens_;
  std::int64_t first_;
};

// Logits over the tail, and each query head's softmax over them: what index::SearchResult continues over the store.
struct TailScores {
  std::int64_t tokens = 0;
  std::vector<float> logits;  // [Hq][tokens]
  std::vector<float> max;     // [Hq], -infinity without a tail
  std::vector<float> sum;     // [Hq], of exp(logit - max)
};

// Returns CacheView::sinks, [Hq]; empty where there are none. Waits for the device.
std::vector<float> sinks_on_host(gpu::Backend& backend, const gpu::CacheView& cache, int query_heads,
                                 gpu::Stream stream);

// Takes them into softmaxes of a part of the positions, `max` and `sum` [Hq].
void add_sinks(const std::vector<float>& sinks, std::vector<float>& max, std::vector<float>& sum);

// logits[h][t] = weights[h] . K[t], with weights f32 [Hq][d] in host memory, the softmax temperature divided out.
TailScores score_tail(const HostTail& tail, const float* weights, int query_heads, const offload::Threads& threads);

}  // namespace hayloft::runtime
