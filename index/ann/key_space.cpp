#include "index/ann/key_space.h"

#include <cblas.h>
#include <faiss/impl/ProductQuantizer.h>

#include <algorithm>
#include <random>

namespace hayloft::index {
namespace {

void train(faiss::VectorTransform& transform, FaissId n, const float* keys) {
  if (transform.is_trained) return;
  auto* opq = dynamic_cast<faiss::OPQMatrix*>(&transform);
  if (opq == nullptr) return transform.train(n, keys);
  // Fewer rounds than Faiss' 50, which take minutes and change little.
  opq->niter = 8;
  opq->niter_pq_0 = 8;
  opq->max_train_points = 16384;
  faiss::ProductQuantizer pq(static_cast<std::size_t>(opq->d_out), static_cast<std::size_t>(opq->M), 8);
  pq.cp.min_points_per_centroid = 1;
  opq->pq = &pq;
  opq->train(n, keys);
  opq->pq = nullptr;
}

}  // namespace

KeySpace::KeySpace(std::vector<float> mean, std::vector<std::shared_ptr<faiss::VectorTransform>> chain,
                   const std::vector<float>& sample)
    : mean_(std::move(mean)), chain_(std::move(chain)), dim_(static_cast<int>(mean_.size())) {
  std::vector<float> keys = sample;
  for (const auto& transform : chain_) {
    const auto n = static_cast<FaissId>(keys.size()) / dim_;
    train(*transform, n, keys.data());
    std::vector<float> next(static_cast<std::size_t>(n * transform->d_out));
    transform->apply_noalloc(n, keys.data(), next.data());
    keys = std::move(next);
    dim_ = transform->d_out;
  }
  if (!chain_.empty()) origin_ = transform(std::vector<float>(mean_.size()));
}

KeySpace::KeySpace(std::vector<std::shared_ptr<faiss::VectorTransform>> chain, int head_dim, IndexReader& in)
    : mean_(in.array<float>(static_cast<std::uint64_t>(head_dim))), chain_(std::move(chain)), dim_(head_dim) {
  for (const auto& transform : chain_) {
    auto& linear = static_cast<faiss::LinearTransform&>(*transform);
    linear.have_bias = in.number<std::uint8_t>() != 0;
    linear.A = in.array<float>(static_cast<std::uint64_t>(linear.d_in) * static_cast<std::uint64_t>(linear.d_out));
    linear.b = in.array<float>(linear.have_bias ? static_cast<std::uint64_t>(linear.d_out) : 0);
    linear.is_trained = true;
    dim_ = linear.d_out;
  }
  if (!chain_.empty()) origin_ = transform(std::vector<float>(mean_.size()));
}

void KeySpace::write(ByteWriter& out) const {
  out.array(std::span<const float>(mean_));
  for (const auto& transform : chain_) {
    const auto& linear = static_cast<const faiss::LinearTransform&>(*transform);
    out.number(static_cast<std::uint8_t>(linear.have_bias));
    out.array(std::span<const float>(linear.A));
    if (linear.have_bias) out.array(std::span<const float>(linear.b));
  }
}

std::uint64_t KeySpace::bytes() const {
  std::uint64_t floats = mean_.size() + origin_.size();
  for (const auto& transform : chain_) floats += static_cast<std::uint64_t>(transform->d_in) * transform->d_out;
  return floats * sizeof(float);
}

std::vector<float> KeySpace::transform(std::vector<float> keys) const {
  const auto n = static_cast<FaissId>(keys.size() / mean_.size());
  for (const auto& transform : chain_) {
    std::vector<float> next(static_cast<std::size_t>(n * transform->d_out));
    transform->apply_noalloc(n, keys.data(), next.data());
    keys = std::move(next);
  }
  return keys;
}

std::vector<float> KeySpace::keys(const KeyRows& rows, std::int64_t begin, std::int64_t end) const {
  std::vector<float> keys(static_cast<std::size_t>(end - begin) * mean_.size());
  centred_keys(rows, begin, end, mean_.data(), keys.data());
  return transform(std::move(keys));
}

KeySpace::Query KeySpace::query(const float* q) const {
  const std::size_t d = mean_.size();
  Query query{{q, q + d}, cblas_sdot(static_cast<int>(d), q, 1, mean_.data(), 1)};
  if (chain_.empty()) return query;
  query.q = transform(std::move(query.q));
  // A key becomes A k + b, a query only A q: b would add a product of its own.
  for (std::size_t i = 0; i < query.q.size(); ++i) query.q[i] -= origin_[i];
  query.offset -= cblas_sdot(dim_, query.q.data(), 1, origin_.data(), 1);
  return query;
}

QueryMoments KeySpace::moments(const QueryMoments& queries) const {
  if (chain_.empty() || queries.queries == 0) return queries;
  // A M A^T: A applied to the rows of M, then to the rows of what is its transpose.
  const auto d = static_cast<std::size_t>(mean_.size());
  const auto columns = static_cast<std::size_t>(dim_);
  const auto apply = [&](const std::vector<double>& matrix, std::size_t rows) {  // [rows][d] to its [dim()][rows]
    std::vector<double> out(columns * rows);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::vector<float> row =
          transform(std::vector<float>(matrix.begin() + static_cast<std::ptrdiff_t>(r * d),
                                       matrix.begin() + static_cast<std::ptrdiff_t>((r + 1) * d)));
      for (std::size_t c = 0; c < columns; ++c) out[c * rows + r] = static_cast<double>(row[c]) - origin_[c];
    }
    return out;
  };
  return {apply(apply(queries.sum, d), columns), queries.queries};
}

std::vector<float> sample_keys(const KeyRows& rows, std::int64_t tokens, std::int64_t n, const float* mean) {
  n = std::min(n, tokens);
  const auto d = static_cast<std::size_t>(rows.dim());
  std::vector<float> keys(static_cast<std::size_t>(n) * d);
  std::mt19937_64 random(1);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t begin = i * tokens / n;
    const std::int64_t share = (i + 1) * tokens / n - begin;
    const std::int64_t position = begin + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(share));
    centred_keys(rows, position, position + 1, mean, keys.data() + static_cast<std::size_t>(i) * d);
  }
  return keys;
}

std::vector<float> mean_key(const KeyRows& rows, std::int64_t tokens, bool wanted) {
  const auto d = static_cast<std::size_t>(rows.dim());
  std::vector<float> zero(d);
  if (!wanted) return zero;
  const std::vector<float> keys = sample_keys(rows, tokens, 4096, zero.data());
  std::vector<double> sum(d);
  for (std::size_t i = 0; i < keys.size(); ++i) sum[i % d] += keys[i];
  std::vector<float> mean(d);
  for (std::size_t c = 0; c < d; ++c)
    mean[c] = static_cast<float>(sum[c] * static_cast<double>(d) / static_cast<double>(keys.size()));
  return mean;
}

}  // namespace hayloft::index
