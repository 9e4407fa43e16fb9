#include <cblas.h>
#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>
#include <faiss/IndexIVF.h>
#include <faiss/clone_index.h>
#include <faiss/impl/IDSelector.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "index/ann/codes.h"
#include "index/ann/list_spread.h"

// IVF: keys in lists around centroids, of which the most promising are looked into. The centroids and the codes are
// Faiss' work, and so is comparing codes; which lists are looked into, and reading the rows, is ours.
namespace hayloft::index {
namespace {

constexpr std::int64_t sample_per_list = 32;  // more improve the lists little; Faiss warns below 39
constexpr int clustering_rounds = 5;          // the sixth moves few keys

class ListsHead : public AnnHead {
 public:
  ListsHead(AnnParts parts, const AnnTraining& training)
      : lists_(parts.lists), sizes_(static_cast<std::size_t>(lists_)) {
    std::vector<float> mean = mean_key(training.rows, training.tokens, training.query_aware);
    const std::int64_t wanted = std::max<std::int64_t>(sample_per_list * lists_, parts.codes ? 65536 : 4096);
    const std::vector<float> sample = sample_keys(training.rows, training.tokens, wanted, mean.data());
    space_ = std::make_shared<KeySpace>(std::move(mean), std::move(parts.chain), sample);
    const std::vector<float> keys = space_->transform(sample);
    const int d = space_->dim();
    const auto n = static_cast<FaissId>(keys.size()) / d;
    make_quantizer(training.query_aware);
    faiss::Clustering clustering(d, lists_);
    clustering.niter = clustering_rounds;
    clustering.min_points_per_centroid = 1;
    clustering.max_points_per_centroid = static_cast<int>(sample_per_list);
    clustering.spherical = !training.query_aware;
    clustering.seed = 1;
    clustering.train(n, keys.data(), *quantizer_);
    if (parts.codes) {
      codes_.reset(static_cast<faiss::IndexIVF*>(parts.codes.release()));
      use_quantizer();
      codes_->train(n, keys.data());
    } else {
      positions_.resize(static_cast<std::size_t>(lists_));
    }
    if (training.query_aware) train_spread(keys, training.queries);
  }
  ListsHead(const ListsHead& other)
      : space_(other.space_),
        lists_(other.lists_),
        quantizer_(other.quantizer_),
        spread_(other.spread_ ? std::make_unique<ListSpread>(*other.spread_) : nullptr),
        sizes_(other.sizes_),
        positions_(other.positions_),
        tokens_(other.tokens_) {
    if (!other.codes_) return;
    codes_.reset(static_cast<faiss::IndexIVF*>(faiss::clone_index(other.codes_.get())));
    use_quantizer();
  }

  ListsHead(AnnParts parts, int head_dim, IndexReader& in) : lists_(parts.lists) {
    space_ = std::make_shared<KeySpace>(std::move(parts.chain), head_dim, in);
    const int d = space_->dim();
    const bool aware = in.number<std::uint8_t>() != 0;
    const std::vector<float> centroids =
        in.array<float>(static_cast<std::uint64_t>(lists_) * static_cast<std::uint64_t>(d));
    make_quantizer(aware);
    quantizer_->add(lists_, centroids.data());
    if (aware) spread_ = std::make_unique<ListSpread>(d, lists_, in);
    if (parts.codes) {
      codes_.reset(static_cast<faiss::IndexIVF*>(parts.codes.release()));
      use_quantizer();
      read_quantizer(*codes_, in);
    }
    read_lists(in);
  }
  void write(ByteWriter& out) const override {
    space_->write(out);
    out.number(static_cast<std::uint8_t>(spread_ != nullptr));
    out.array(std::span<const float>(centroid(0),
                                     static_cast<std::size_t>(lists_) * static_cast<std::size_t>(space_->dim())));
    if (spread_) spread_->write(out);
    if (codes_) write_quantizer(*codes_, out);
    out.number(static_cast<std::int32_t>(tokens_));
    out.array(std::span<const std::int32_t>(sizes_));
    for (std::size_t list = 0; list < sizes_.size(); ++list) {
      if (!codes_) {
        out.array(std::span<const std::int32_t>(positions_[list]));
        continue;
      }
      faiss::InvertedLists::ScopedIds ids(codes_->invlists, list);
      for (std::int32_t i = 0; i < sizes_[list]; ++i)
        out.number(static_cast<std::int32_t>(ids[static_cast<std::size_t>(i)]));
      faiss::InvertedLists::ScopedCodes codes(codes_->invlists, list);
      out.array(std::span<const std::uint8_t>(codes.get(), static_cast<std::size_t>(sizes_[list]) * codes_->code_size));
    }
  }

  std::unique_ptr<AnnHead> clone() const override { return std::make_unique<ListsHead>(*this); }
  std::int64_t tokens() const override { return tokens_; }
  bool exact() const override { return codes_ == nullptr; }

  void add(const KeyRows& rows, std::int64_t end) override {
    const int d = space_->dim();
    const std::vector<float> keys = space_->keys(rows, tokens_, end);
    const FaissId n = end - tokens_;
    std::vector<FaissId> lists(static_cast<std::size_t>(n));
    quantizer_->assign(n, keys.data(), lists.data());
    // A key that is not a number is nobody's nearest; any list will do.
    for (FaissId& list : lists) list = std::max<FaissId>(list, 0);
    if (codes_) {
      std::vector<FaissId> ids(static_cast<std::size_t>(n));
      std::iota(ids.begin(), ids.end(), tokens_);
      codes_->add_core(n, keys.data(), ids.data(), lists.data());
    }
    std::vector<float> residual(static_cast<std::size_t>(d));
    for (FaissId i = 0; i < n; ++i) {
      const auto list = static_cast<std::size_t>(lists[static_cast<std::size_t>(i)]);
      ++sizes_[list];
      if (!codes_) positions_[list].push_back(static_cast<std::int32_t>(tokens_ + i));
      if (!spread_) continue;
      const float* key = keys.data() + i * d;
      for (int c = 0; c < d; ++c) residual[static_cast<std::size_t>(c)] = key[c] - centroid(list)[c];
      spread_->add(static_cast<int>(list), residual.data());
    }
    tokens_ = end;
  }

  void search(const KeyRows& rows, const AnnTask& task, BestHits& best, AnnCost& cost) const override {
    const KeySpace::Query query = space_->query(task.q);
    const int d = space_->dim();
    std::vector<float> products(static_cast<std::size_t>(lists_));  // q . c
    cblas_sgemv(CblasRowMajor, CblasNoTrans, lists_, d, 1, quantizer_->get_xb(), d, query.q.data(), 1, 0,
                products.data(), 1);
    std::vector<float> promise = products;
    if (spread_) spread_->raise(query.q.data(), sizes_.data(), promise.data());
    // A query that is not a number must not upset the order.
    for (float& p : promise) p = p == p ? p : -std::numeric_limits<float>::infinity();
    std::vector<std::int32_t> order(static_cast<std::size_t>(lists_));
    std::iota(order.begin(), order.end(), 0);
    const int probes = std::clamp(task.probes > 0 ? task.probes : (lists_ + 15) / 16, 1, lists_);
    std::partial_sort(order.begin(), order.begin() + probes, order.end(), [&](std::int32_t a, std::int32_t b) {
      const float x = promise[static_cast<std::size_t>(a)];
      const float y = promise[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    });
    order.resize(static_cast<std::size_t>(probes));
    std::erase_if(order, [&](std::int32_t list) { return sizes_[static_cast<std::size_t>(list)] == 0; });
    cost.index_bytes += static_cast<std::uint64_t>(lists_) *
                        (static_cast<std::uint64_t>(d) * sizeof(float) + (spread_ ? spread_->list_bytes() : 0));
    if (codes_) {
      compare_codes(query, products, order, task.limit, best, cost);
    } else {
      compare_rows(rows, task, order, best, cost);
    }
  }

  std::uint64_t bytes() const override {
    const auto keys = static_cast<std::uint64_t>(tokens_);
    return space_->bytes() +
           static_cast<std::uint64_t>(lists_) * static_cast<std::uint64_t>(space_->dim()) * sizeof(float) +
           (spread_ ? spread_->bytes() : 0) +
           sizes_.size() * (sizeof(std::int32_t) + sizeof(std::vector<std::int32_t>)) +
           keys * (codes_ ? codes_->code_size + sizeof(FaissId) : sizeof(std::int32_t));
  }

 private:
  const float* centroid(std::size_t list) const {
    return quantizer_->get_xb() + list * static_cast<std::size_t>(space_->dim());
  }

  // Plain as Faiss does it for inner products: centroids on the unit sphere, keys to the one with the largest product.
  // Without their mean, keys are near or far in the ordinary sense.
  void make_quantizer(bool aware) {
    if (aware) {
      quantizer_ = std::make_shared<faiss::IndexFlatL2>(space_->dim());
    } else {
      quantizer_ = std::make_shared<faiss::IndexFlatIP>(space_->dim());
    }
  }

  // Every position once, ascending in its list.
  void read_lists(IndexReader& in) {
    tokens_ = in.number<std::int32_t>();
    if (tokens_ < 0 || static_cast<std::size_t>(tokens_) > in.left()) in.damaged("it has too few keys");
    sizes_ = in.array<std::int32_t>(static_cast<std::uint64_t>(lists_));
    if (!codes_) positions_.resize(sizes_.size());
    std::vector<bool> listed(static_cast<std::size_t>(tokens_));
    std::int64_t total = 0;
    for (std::size_t list = 0; list < sizes_.size(); ++list) {
      if (sizes_[list] < 0 || (total += sizes_[list]) > tokens_)
        in.damaged("its lists have other lengths than it says");
      const auto n = static_cast<std::uint64_t>(sizes_[list]);
      std::vector<std::int32_t> positions = in.array<std::int32_t>(n);
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const std::int32_t p = positions[i];
        if (p < 0 || p >= tokens_ || listed[static_cast<std::size_t>(p)] || (i > 0 && p < positions[i - 1])) {
          in.damaged("a list has positions that cannot be there");
        }
        listed[static_cast<std::size_t>(p)] = true;
      }
      if (codes_) {
        const std::vector<std::uint8_t> codes = in.array<std::uint8_t>(n * codes_->code_size);
        const std::vector<FaissId> ids(positions.begin(), positions.end());
        if (n > 0) codes_->invlists->add_entries(list, ids.size(), ids.data(), codes.data());
      } else {
        positions_[list] = std::move(positions);
      }
    }
    if (total != tokens_) in.damaged("keys are missing from its lists");
    if (codes_) codes_->ntotal = tokens_;
  }

  void use_quantizer() {
    if (codes_->own_fields) delete codes_->quantizer;
    codes_->quantizer = quantizer_.get();
    codes_->own_fields = false;
  }

  void train_spread(const std::vector<float>& keys, const QueryMoments& queries) {
    const int d = space_->dim();
    const auto n = std::min<FaissId>(static_cast<FaissId>(keys.size()) / d, 8192);
    // Every so many of the sample, which is in the order of positions.
    const auto stride = static_cast<std::size_t>(static_cast<FaissId>(keys.size()) / d / n);
    std::vector<float> residuals(static_cast<std::size_t>(n * d));
    std::vector<FaissId> nearest(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      std::copy_n(keys.data() + i * stride * static_cast<std::size_t>(d), d,
                  residuals.data() + i * static_cast<std::size_t>(d));
    }
    quantizer_->assign(n, residuals.data(), nearest.data());
    for (std::size_t i = 0; i < residuals.size(); ++i) {
      const auto list = static_cast<std::size_t>(std::max<FaissId>(0, nearest[i / static_cast<std::size_t>(d)]));
      residuals[i] -= centroid(list)[i % static_cast<std::size_t>(d)];
    }
    spread_ = std::make_unique<ListSpread>(residuals, space_->moments(queries), d, lists_);
  }

  void compare_rows(const KeyRows& rows, const AnnTask& task, const std::vector<std::int32_t>& order, BestHits& best,
                    AnnCost& cost) const {
    constexpr int run = 256;
    std::array<float, run> scores;
    std::uint64_t keys = 0;
    for (const std::int32_t list : order) {
      const std::vector<std::int32_t>& positions = positions_[static_cast<std::size_t>(list)];
      // Positions of a list ascend.
      const auto end = std::lower_bound(positions.begin(), positions.end(), task.limit) - positions.begin();
      for (std::ptrdiff_t at = 0; at < end; at += run) {
        const int n = static_cast<int>(std::min<std::ptrdiff_t>(run, end - at));
        score_rows(rows, task.q, positions.data() + at, n, scores.data());
        best.offer(scores.data(), positions.data() + at, n);
      }
      keys += static_cast<std::uint64_t>(end);
    }
    cost.keys += keys;
    cost.index_bytes += keys * sizeof(std::int32_t);
    cost.row_bytes += keys * rows.key_bytes();
  }

  void compare_codes(const KeySpace::Query& query, const std::vector<float>& products,
                     const std::vector<std::int32_t>& order, std::int64_t limit, BestHits& best, AnnCost& cost) const {
    const faiss::IDSelectorRange wanted(0, limit);
    const std::unique_ptr<faiss::InvertedListScanner> scanner(
        codes_->get_InvertedListScanner(false, limit < tokens_ ? &wanted : nullptr));
    scanner->set_query(query.q.data());
    // A heap as Faiss keeps it, the worst in front.
    std::vector<float> scores(best.capacity(), -std::numeric_limits<float>::infinity());
    std::vector<FaissId> ids(best.capacity(), -1);
    std::uint64_t keys = 0;
    for (const std::int32_t list : order) {
      const auto n = static_cast<std::size_t>(list);
      scanner->set_list(list, products[n]);
      faiss::InvertedLists::ScopedCodes codes(codes_->invlists, n);
      faiss::InvertedLists::ScopedIds list_ids(codes_->invlists, n);
      scanner->scan_codes(codes_->invlists->list_size(n), codes.get(), list_ids.get(), scores.data(), ids.data(),
                          best.capacity());
      keys += codes_->invlists->list_size(n);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= 0) best.offer(scores[i] + query.offset, static_cast<std::int32_t>(ids[i]));
    }
    cost.keys += keys;
    cost.index_bytes += keys * (codes_->code_size + sizeof(FaissId));
  }

  std::shared_ptr<const KeySpace> space_;
  int lists_;
  std::shared_ptr<faiss::IndexFlat> quantizer_;       // the centroids; they do not change after training
  std::unique_ptr<ListSpread> spread_;                // null: not query-aware
  std::vector<std::int32_t> sizes_;                   // [lists]
  std::vector<std::vector<std::int32_t>> positions_;  // [lists], ascending; empty where there are codes
  std::unique_ptr<faiss::IndexIVF> codes_;            // null: the rows
  std::int64_t tokens_ = 0;
};

}  // namespace

std::unique_ptr<AnnHead> read_lists_head(AnnParts parts, int head_dim, IndexReader& in) {
  return std::make_unique<ListsHead>(std::move(parts), head_dim, in);
}

std::unique_ptr<AnnHead> make_lists_head(AnnParts parts, const AnnTraining& training) {
  return std::make_unique<ListsHead>(std::move(parts), training);
}

}  // namespace hayloft::index
