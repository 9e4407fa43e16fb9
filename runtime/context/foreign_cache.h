#pragma once

#include <cstdint>
#include <memory>

#include "offload/host/arena.h"
#include "runtime/attention/method.h"
#include "runtime/cache/cache.h"
#include "runtime/decode/decode_attention.h"

namespace hayloft::runtime {

// The cache and the attention of the global layers of a model that someone else computes, such as one of Hugging Face
// transformers: it is given queries, keys and values of a layer and returns what attention makes of them. Of the
// configuration only layers, heads, head dimension and sliding windows are looked at. Not thread-safe; backend and
// arena must outlive it.
//
// A forward pass calls attend() once for each global layer, in order, with the same tokens. All of them but the last
// attend exactly, as a prompt does; the last attends by the method, as a session decodes the last token of a prompt.
class ForeignCache {
 public:
  ForeignCache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config, const CacheOptions& options);
  // Goes on where a snapshot ends, as far as it has K and V. Throws Error when it does not fit.
  ForeignCache(gpu::Backend& backend, offload::Arena& arena, const ModelConfig& config, const CacheOptions& options,
               const offload::Snapshot& snapshot);

  // By `method` from now on; exactly until then. One that keeps something of the sequence is set before the first
  // token.
  void set_method(SharedMethod method);

  // T tokens of one global layer: q f32 [T][Hq][d], k and v f32 [T][Hkv][d], out f32 [T][Hq][d], all in host memory.
  // Keys are rotated as they are to be attended to, queries as well; products are divided by sqrt(d). Throws Error:
  // host memory is exhausted, or the forward pass before this one did not reach every layer.
  void attend(int layer, const float* q, const float* k, const float* v, int T, float* out);

  std::int64_t tokens(int layer) const { return cache_.view(layer).tokens(); }
  const ModelConfig& config() const { return config_; }
  Counters counters() const { return attention_.read_counters(); }  // of the tokens that attended by the method
  // Returns the tokens that the method, or one before it, attended approximately for, since the cache was made.
  ApproximateTokens approximate_tokens() const {
    return config_.caches_behind_global() ? attention_.approximate_tokens() : ApproximateTokens();
  }
  const Method& method() const { return *attention_.method(); }

  // Everything that was added, settled: what can be saved. Throws Error where a forward pass did not reach every layer.
  const Cache& settled();

 private:
  void require_whole() const;  // all global layers hold the same tokens
  void begin(int layer);
  void read(int layer, const float* q, const float* k, const float* v, int T, float* out);
  void append_chunk(int layer, const float* k, const float* v, int T);
  float* device(gpu::Buffer& buffer, std::int64_t elements) const;

  gpu::Backend* backend_;
  ModelConfig config_;
  Cache cache_;
  std::unique_ptr<MethodState> state_;
  DecodeAttention attention_;
  MethodScratch scratch_;
  gpu::Buffer q_;
  gpu::Buffer k_;
  gpu::Buffer v_;
  gpu::Buffer out_;
  int last_layer_ = -1;  // that was given tokens
  bool failed_ = false;  // in the middle of a pass
};

}  // namespace hayloft::runtime
