#pragma once

#include <faiss/Index.h>
#include <faiss/VectorTransform.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "index/ann/head.h"

namespace hayloft::index {

using FaissId = decltype(faiss::Index::ntotal);  // idx_t, whose home differs between versions of Faiss

// Keys as an index sees them: without their mean, through a chain of linear transforms. Immutable once made, shared by
// forks.
class KeySpace {
 public:
  // Trains the chain on `sample` [n][d], keys without their mean.
  KeySpace(std::vector<float> mean, std::vector<std::shared_ptr<faiss::VectorTransform>> chain,
           const std::vector<float>& sample);

  KeySpace(std::vector<std::shared_ptr<faiss::VectorTransform>> chain, int head_dim, IndexReader& in);
  void write(ByteWriter& out) const;

  int dim() const { return dim_; }
  const float* mean() const { return mean_.data(); }  // [d]
  std::uint64_t bytes() const;

  std::vector<float> keys(const KeyRows& rows, std::int64_t begin, std::int64_t end) const;  // [end - begin][dim()]
  std::vector<float> transform(std::vector<float> keys) const;  // of keys without their mean

  // The query that goes with such keys, and what its products lack: q . k = query . key + offset.
  struct Query {
    std::vector<float> q;  // [dim()]
    float offset = 0;
  };
  Query query(const float* q) const;
  QueryMoments moments(const QueryMoments& queries) const;  // of such queries

 private:
  std::vector<float> mean_;
  std::vector<std::shared_ptr<faiss::VectorTransform>> chain_;
  std::vector<float> origin_;  // where the chain takes 0; empty without a chain
  int dim_;
};

// Up to n keys of [0, tokens), evenly spread, each at a random place of its share; [n][d] less `mean`.
std::vector<float> sample_keys(const KeyRows& rows, std::int64_t tokens, std::int64_t n, const float* mean);

// Their mean, or zeros.
std::vector<float> mean_key(const KeyRows& rows, std::int64_t tokens, bool wanted);

}  // namespace hayloft::index
