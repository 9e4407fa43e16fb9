#include "index/ann/list_spread.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace hayloft::index {
namespace {

using Square = std::vector<double>;  // [d][d]

// Lower triangular L with L L^T = a, which is positive definite.
Square cholesky(Square a, int d) {
  for (int j = 0; j < d; ++j) {
    for (int i = j; i < d; ++i) {
      double sum = a[static_cast<std::size_t>(i * d + j)];
      for (int k = 0; k < j; ++k)
        sum -= a[static_cast<std::size_t>(i * d + k)] * a[static_cast<std::size_t>(j * d + k)];
      a[static_cast<std::size_t>(i * d + j)] =
          i == j ? std::sqrt(std::max(sum, 1e-300)) : sum / a[static_cast<std::size_t>(j * d + j)];
    }
    for (int i = 0; i < j; ++i) a[static_cast<std::size_t>(i * d + j)] = 0;
  }
  return a;
}

// Returns how much the queries vary along each direction; a thousandth of the mean is added everywhere, so that a
// direction that none of them has is not taken for one that none ever will.
Square query_metric(const QueryMoments& queries, int d) {
  Square metric(static_cast<std::size_t>(d * d));
  double trace = 0;
  for (int i = 0; i < d && queries.queries > 0; ++i) trace += queries.sum[static_cast<std::size_t>(i * d + i)];
  if (!(trace > 0) || !std::isfinite(trace)) {
    for (int i = 0; i < d; ++i) metric[static_cast<std::size_t>(i * d + i)] = 1;
    return metric;
  }
  for (std::size_t i = 0; i < metric.size(); ++i) metric[i] = queries.sum[i] * d / trace;
  for (int i = 0; i < d; ++i) metric[static_cast<std::size_t>(i * d + i)] += 1e-3;
  return cholesky(std::move(metric), d);
}

void orthonormalise(std::vector<double>& basis, int vectors, int d) {  // Gram and Schmidt, twice for accuracy
  for (int v = 0; v < vectors; ++v) {
    double* x = basis.data() + v * d;
    for (int u = 0; u < 2 * v; ++u) {
      const double* y = basis.data() + u % v * d;
      double product = 0;
      for (int c = 0; c < d; ++c) product += x[c] * y[c];
      for (int c = 0; c < d; ++c) x[c] -= product * y[c];
    }
    double norm = 0;
    for (int c = 0; c < d; ++c) norm += x[c] * x[c];
    norm = std::sqrt(norm);
    for (int c = 0; c < d; ++c) x[c] = norm > 1e-150 ? x[c] / norm : 0;
  }
}

}  // namespace

ListSpread::ListSpread(std::span<const float> residuals, const QueryMoments& queries, int d, int lists)
    : d_(d),
      lists_(lists),
      to_axes_(static_cast<std::size_t>(axes * d)),
      query_to_axes_(to_axes_.size()),
      sums_(static_cast<std::size_t>(products) * static_cast<std::size_t>(lists)) {
  const Square lower = query_metric(queries, d);
  // Second moment of z = L^T r.
  Square moment(lower.size());
  std::vector<double> z(static_cast<std::size_t>(d));
  const auto n = static_cast<std::ptrdiff_t>(residuals.size()) / d;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const float* r = residuals.data() + i * d;
    for (int c = 0; c < d; ++c) {
      z[static_cast<std::size_t>(c)] = 0;
      for (int k = c; k < d; ++k) z[static_cast<std::size_t>(c)] += lower[static_cast<std::size_t>(k * d + c)] * r[k];
    }
    for (int a = 0; a < d; ++a) {
      for (int b = 0; b < d; ++b)
        moment[static_cast<std::size_t>(a * d + b)] += z[static_cast<std::size_t>(a)] * z[static_cast<std::size_t>(b)];
    }
  }
  // Its principal directions, by orthogonal iteration: they need not be exact to be good axes.
  const int m = std::min(axes, d);
  std::mt19937_64 random(1);
  std::vector<double> basis(static_cast<std::size_t>(axes * d));
  for (int i = 0; i < m * d; ++i)
    basis[static_cast<std::size_t>(i)] = static_cast<double>(random() >> 11) * 0x1p-53 - 0.5;
  for (int round = 0; round < 20; ++round) {
    std::vector<double> next(basis.size());
    for (int v = 0; v < m; ++v) {
      for (int a = 0; a < d; ++a) {
        const double x = basis[static_cast<std::size_t>(v * d + a)];
        for (int b = 0; b < d; ++b)
          next[static_cast<std::size_t>(v * d + b)] += x * moment[static_cast<std::size_t>(a * d + b)];
      }
    }
    basis = std::move(next);
    orthonormalise(basis, m, d);
  }
  for (int v = 0; v < m; ++v) {
    const double* b = basis.data() + v * d;
    // B^T L^T: row v is L b. B^T L^-1: row v is L^-T b, by solving L^T x = b from the last component on.
    std::vector<double> x(b, b + d);
    for (int i = d - 1; i >= 0; --i) {
      double sum = b[i];
      for (int k = i + 1; k < d; ++k)
        sum -= lower[static_cast<std::size_t>(k * d + i)] * x[static_cast<std::size_t>(k)];
      x[static_cast<std::size_t>(i)] = sum / lower[static_cast<std::size_t>(i * d + i)];
    }
    for (int i = 0; i < d; ++i) {
      double sum = 0;
      for (int k = 0; k <= i; ++k) sum += lower[static_cast<std::size_t>(i * d + k)] * b[k];
      to_axes_[static_cast<std::size_t>(v * d + i)] = static_cast<float>(sum);
      query_to_axes_[static_cast<std::size_t>(v * d + i)] = static_cast<float>(x[static_cast<std::size_t>(i)]);
    }
  }
}

ListSpread::ListSpread(int d, int lists, IndexReader& in)
    : d_(d),
      lists_(lists),
      to_axes_(in.array<float>(static_cast<std::uint64_t>(axes) * static_cast<std::uint64_t>(d))),
      query_to_axes_(in.array<float>(to_axes_.size())),
      sums_(in.array<float>(static_cast<std::uint64_t>(products) * static_cast<std::uint64_t>(lists))) {}

void ListSpread::write(ByteWriter& out) const {
  out.array(std::span<const float>(to_axes_));
  out.array(std::span<const float>(query_to_axes_));
  out.array(std::span<const float>(sums_));
}

void ListSpread::add(int list, const float* residual) {
  float z[axes];
  for (int v = 0; v < axes; ++v) {
    const float* row = to_axes_.data() + v * d_;
    float sum = 0;
    for (int c = 0; c < d_; ++c) sum += row[c] * residual[c];
    z[v] = sum;
  }
  float* sums = sums_.data() + list;
  for (int i = 0; i < axes; ++i) {
    for (int j = i; j < axes; ++j, sums += lists_) *sums += z[i] * z[j];
  }
}

void ListSpread::raise(const float* q, const std::int32_t* sizes, float* scores) const {
  float qm[axes];
  for (int v = 0; v < axes; ++v) {
    const float* row = query_to_axes_.data() + v * d_;
    float sum = 0;
    for (int c = 0; c < d_; ++c) sum += row[c] * q[c];
    qm[v] = sum;
  }
  std::vector<float> spread(static_cast<std::size_t>(lists_));
  const float* sums = sums_.data();
  for (int i = 0; i < axes; ++i) {
    for (int j = i; j < axes; ++j, sums += lists_) {
      const float weight = qm[i] * qm[j] * (i == j ? 1.0f : 2.0f);
      for (int list = 0; list < lists_; ++list) spread[static_cast<std::size_t>(list)] += weight * sums[list];
    }
  }
  for (int list = 0; list < lists_; ++list) {
    const float moment = spread[static_cast<std::size_t>(list)] / static_cast<float>(std::max(1, sizes[list]));
    scores[list] += reach * std::sqrt(std::max(0.0f, moment));
  }
}

}  // namespace hayloft::index
