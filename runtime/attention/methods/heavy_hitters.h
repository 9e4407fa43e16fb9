#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu/backend.h"
#include "runtime/attention/method_state.h"

namespace hayloft::runtime {

// The state that H2O (arXiv 2306.14048) keeps of a sequence: for every KV head k positions, of which `recent` are the
// newest and the others those that have gathered the most attention so far, added up over all queries and the group's
// query heads. What is evicted is gone for good. Rows are copied out of the cache, so nothing ever reads it again;
// linear in the length of the sequence.
//
// A prompt is taken in by chunks: every query of the chunk scores, causally and exactly, what was kept and the chunk up
// to itself, and only then all but k are evicted. (H2O evicts after every token; with chunks of one token this does,
// and attends as it does there.) A decoded token evicts one.
class HeavyHitters : public MethodState {
 public:
  // Counts the positions that a layer keeps, and those of them that are the newest (one at least), when the sequence
  // holds `tokens`.
  struct Quota {
    std::int64_t k;
    std::int64_t recent;
  };
  using QuotaOf = std::function<Quota(int layer, std::int64_t tokens)>;

  HeavyHitters(const AttentionShape& shape, QuotaOf quota, gpu::Backend& device);

  std::unique_ptr<MethodState> fork() const override { return std::make_unique<HeavyHitters>(*this); }

  // Throws Error unless it has seen the queries of every token of the sequence.
  void sync_with_cache(std::span<const gpu::CacheView> layers, const StateProgress& progress) override;
  int wants_queries(int layer, int T) const override;
  void see_queries(const gpu::CacheView& cache, const float* q, int n) override;
  std::uint64_t bytes() const override;

  std::vector<std::byte> save() const override;
  void load(std::span<const std::byte> saved);  // into a fresh one; throws Error, after which it is of no use

  // Decode: takes in the cache's newest token, evicting another where the quota is full, and attends with it to what
  // is kept then. q and out are f32 [Hq][d] in host memory. Throws Error as sync_with_cache() does.
  void attend(const gpu::CacheView& cache, const float* q, float* out);

  // [Hkv][kept], ascending.
  std::vector<std::int32_t> positions(int layer) const;
  std::int64_t kept(int layer) const { return layers_[static_cast<std::size_t>(layer)].kept; }

 private:
  // One layer; every head keeps as many.
  struct Layer {
    std::int64_t seen = 0;  // tokens of the sequence taken in
    std::int64_t kept = 0;
    std::int64_t capacity = 0;  // of rows
    struct Head {
      std::vector<std::int32_t> positions;  // ascending
      std::vector<double> mass;
    };
    std::vector<Head> heads;
    std::vector<f16> rows;  // [Hkv][capacity][2 d], K then V
  };

  std::vector<float> sinks_of(const gpu::CacheView& cache) const;
  Layer& at(const gpu::CacheView& cache) { return layers_[static_cast<std::size_t>(cache.layer)]; }
  void require_seen(const gpu::CacheView& cache, std::int64_t tokens) const;
  // The cache's newest tokens join what is kept, without any mass.
  void append_rows(Layer& layer, const gpu::CacheView& cache, std::int64_t newest) const;
  // Adds the mass that n queries [n][Hq][d] give to what is kept; they belong to its newest n positions.
  void gather_mass(Layer& layer, const float* q, std::int64_t n, const std::vector<float>& sinks) const;
  void evict(Layer& layer, const Quota& quota) const;
  void set_capacity(Layer& layer, std::int64_t capacity) const;

  AttentionShape shape_;
  QuotaOf quota_;
  gpu::Backend* device_;
  std::shared_ptr<gpu::Backend> host_;  // attends to the kept rows
  std::vector<Layer> layers_;
};

}  // namespace hayloft::runtime
