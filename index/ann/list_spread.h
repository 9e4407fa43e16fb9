#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "index/ann/head.h"

namespace hayloft::index {

// Says how far the keys of a list reach beyond its centroid, along a query. Ranking lists by q . c alone misses those
// of which only some keys score high, and queries are not where keys are, so that is the rule rather than the
// exception. The spread of q . k within a list is sqrt(q^T C q), C the second moment of its keys about the centroid. C
// is kept in the few directions that matter: with L L^T = E[q q^T] over the prompt's queries, L^T (k - c) has the
// metric in which queries are the same in all directions, and its principal directions over all lists are the axes.
// Lists are ranked by
//
//   q . c + reach sqrt(q_m^T C_m q_m),  q_m = B^T L^-1 q,  C_m = E[z_m z_m^T],  z_m = B^T L^T (k - c).
//
// Immutable after construction but for the sums of the lists.
class ListSpread {
 public:
  // residuals [n][d] of a sample; queries in the same space, may be none: L is then 1.
  ListSpread(std::span<const float> residuals, const QueryMoments& queries, int d, int lists);

  ListSpread(int d, int lists, IndexReader& in);
  void write(ByteWriter& out) const;

  void add(int list, const float* residual);  // [d]

  // scores [lists] += reach * spread.
  void raise(const float* q, const std::int32_t* sizes, float* scores) const;

  std::uint64_t bytes() const { return (sums_.size() + to_axes_.size() + query_to_axes_.size()) * sizeof(float); }
  std::uint64_t list_bytes() const { return sizeof(float) * products; }  // read per list by raise()

 private:
  static constexpr int axes = 8;                          // m
  static constexpr int products = axes * (axes + 1) / 2;  // of a symmetric matrix
  static constexpr float reach = 2.5f;                    // docs/ann.md has the measurement

  int d_;
  int lists_;
  std::vector<float> to_axes_;        // [m][d], B^T L^T
  std::vector<float> query_to_axes_;  // [m][d], B^T L^-1
  std::vector<float> sums_;           // [products][lists], sums of z_i z_j, i <= j
};

}  // namespace hayloft::index
