#pragma once

#include <cblas.h>
#include <faiss/Index.h>
#include <faiss/clone_index.h>
#include <faiss/impl/DistanceComputer.h>
#include <faiss/impl/FaissAssert.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "index/ann/codes.h"

namespace hayloft::index {

// Holds the keys that the graph is built over. Faiss looks for the nearest; two keys are the nearer the larger
//
//   a . b                                          for plain inner products, and
//   (a - m) . (b - m) + norm(a) norm(b)            with what each lacks of a common norm R in one more dimension,
//                                                  norm(a) = sqrt(R^2 - |a - m|^2),
//
// which ranks as the Euclidean distance does once all keys have norm R, and as inner products do for a query, which has
// a zero there (Bachrach et al., RecSys 2014). Inner products of keys with each other lead to the few longest ones.
//
// The place of the keys is told anew before each addition, since a view of the store is short-lived. Not thread-safe
// but for its distance computers, as Faiss wants it.
class GraphStorage : public faiss::Index {
 public:
  GraphStorage(std::shared_ptr<const KeySpace> space, std::unique_ptr<faiss::Index> codes, float norm)
      : faiss::Index(space->dim(), faiss::METRIC_L2), space_(std::move(space)), codes_(std::move(codes)), norm_(norm) {}
  GraphStorage(const GraphStorage& other)
      : faiss::Index(other),
        space_(other.space_),
        codes_(other.codes_ ? faiss::clone_index(other.codes_.get()) : nullptr),
        norm_(other.norm_),
        lacking_(other.lacking_) {}

  GraphStorage(AnnParts parts, int head_dim, IndexReader& in)
      : space_(std::make_shared<KeySpace>(std::move(parts.chain), head_dim, in)),
        codes_(std::move(parts.codes)),
        norm_(in.number<float>()) {
    d = space_->dim();
    metric_type = faiss::METRIC_L2;
    ntotal = in.number<std::int32_t>();
    if (ntotal < 0) in.damaged("a negative number of keys");
    if (norm_ > 0) lacking_ = in.array<float>(static_cast<std::uint64_t>(ntotal));
    if (!codes_) return;
    read_quantizer(*codes_, in);
    read_flat_codes(*codes_, ntotal, in);
  }
  void write(ByteWriter& out) const {
    space_->write(out);
    out.number(norm_);
    out.number(static_cast<std::int32_t>(ntotal));
    out.array(std::span<const float>(lacking_));
    if (!codes_) return;
    write_quantizer(*codes_, out);
    write_flat_codes(*codes_, out);
  }

  // Sets the place of the keys while some are added; without codes.
  void read_from(const KeyRows* rows) { rows_ = rows; }

  void add(FaissId n, const float* x) override {
    if (codes_) codes_->add(n, x);
    if (norm_ > 0) {
      for (FaissId i = 0; i < n; ++i) lacking_.push_back(lacking(x + i * d));
    }
    ntotal += n;
  }
  void reset() override {
    if (codes_) codes_->reset();
    lacking_.clear();
    ntotal = 0;
  }
  void search(FaissId, const float*, FaissId, float*, FaissId*, const faiss::SearchParameters*) const override {
    FAISS_THROW_MSG("only the graph is searched");
  }
  faiss::DistanceComputer* get_distance_computer() const override { return new Distances(*this); }

  const KeySpace& space() const { return *space_; }
  const faiss::Index* codes() const { return codes_.get(); }
  std::uint64_t bytes() const {
    return space_->bytes() + lacking_.size() * sizeof(float) +
           (codes_ ? static_cast<std::uint64_t>(ntotal) * codes_->sa_code_size() : 0);
  }

 private:
  // Measures distances between keys that are added. Not of queries: search() of the graph does without.
  class Distances : public faiss::DistanceComputer {
   public:
    explicit Distances(const GraphStorage& storage)
        : storage_(storage),
          products_(storage.codes_ ? storage.codes_->get_distance_computer() : nullptr),
          decoded_(storage.codes_ ? 2 * static_cast<std::size_t>(storage.d) : 0) {}

    void set_query(const float* x) override {
      x_ = x;
      if (products_) {
        products_->set_query(x);
      } else {
        const float* mean = storage_.space_->mean();
        offset_ = 0;
        for (int c = 0; c < storage_.d; ++c) offset_ += x[c] * mean[c];
      }
      lacking_ = storage_.norm_ > 0 ? storage_.lacking(x) : 0;
    }
    float operator()(FaissId i) override {
      float product;
      if (products_) {
        product = (*products_)(i);
      } else {
        const auto position = static_cast<std::int32_t>(i);
        score_rows(*storage_.rows_, x_, &position, 1, &product);
        product -= offset_;
      }
      return -(product + lacking_ * storage_.lacking_at(i));
    }
    // Not the codes' own symmetric distance: that of PQ is Euclidean whatever the metric.
    float symmetric_dis(FaissId i, FaissId j) override {
      float product = 0;
      if (products_) {
        storage_.codes_->reconstruct(i, decoded_.data());
        storage_.codes_->reconstruct(j, decoded_.data() + storage_.d);
        product = cblas_sdot(storage_.d, decoded_.data(), 1, decoded_.data() + storage_.d, 1);
      } else {
        f16 one[most_row_elements], other[most_row_elements];
        product = centred_product(storage_.rows_->key(i, one), storage_.rows_->key(j, other), storage_.space_->mean(),
                                  storage_.d);
      }
      return -(product + storage_.lacking_at(i) * storage_.lacking_at(j));
    }

   private:
    const GraphStorage& storage_;
    std::unique_ptr<faiss::DistanceComputer> products_;
    const float* x_ = nullptr;
    std::vector<float> decoded_;  // two keys; only for codes
    float offset_ = 0;
    float lacking_ = 0;
  };

  float lacking(const float* x) const {
    float square = 0;
    for (int c = 0; c < d; ++c) square += x[c] * x[c];
    return std::sqrt(std::max(0.0f, norm_ * norm_ - square));
  }
  float lacking_at(FaissId i) const { return norm_ > 0 ? lacking_[static_cast<std::size_t>(i)] : 0; }

  std::shared_ptr<const KeySpace> space_;
  std::unique_ptr<faiss::Index> codes_;  // null: the rows
  float norm_;                           // R; 0: plain inner products
  std::vector<float> lacking_;           // [ntotal] where norm_ > 0
  const KeyRows* rows_ = nullptr;
};

}  // namespace hayloft::index
