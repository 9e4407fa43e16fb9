#include <faiss/clone_index.h>
#include <faiss/impl/DistanceComputer.h>

#include <algorithm>

#include "index/ann/codes.h"

// Every key is compared, by its row or by its code: Flat, SQ8, PQm and the like.
namespace hayloft::index {
namespace {

class ScanHead : public AnnHead {
 public:
  ScanHead(AnnParts parts, const AnnTraining& training) : codes_(std::move(parts.codes)) {
    if (!codes_) {
      space_ = std::make_shared<KeySpace>(std::vector<float>(static_cast<std::size_t>(training.rows.dim())),
                                          std::move(parts.chain), std::vector<float>());
      return;
    }
    std::vector<float> mean = mean_key(training.rows, training.tokens, training.query_aware);
    const std::vector<float> sample = sample_keys(training.rows, training.tokens, 65536, mean.data());
    space_ = std::make_shared<KeySpace>(std::move(mean), std::move(parts.chain), sample);
    const std::vector<float> keys = space_->transform(sample);
    codes_->train(static_cast<FaissId>(keys.size()) / space_->dim(), keys.data());
  }
  ScanHead(const ScanHead& other)
      : space_(other.space_),
        codes_(other.codes_ ? faiss::clone_index(other.codes_.get()) : nullptr),
        tokens_(other.tokens_) {}

  ScanHead(AnnParts parts, int head_dim, IndexReader& in) : codes_(std::move(parts.codes)) {
    space_ = std::make_shared<KeySpace>(std::move(parts.chain), head_dim, in);
    tokens_ = in.number<std::int32_t>();
    if (tokens_ < 0) in.damaged("a negative number of keys");
    if (!codes_) return;
    read_quantizer(*codes_, in);
    read_flat_codes(*codes_, tokens_, in);
  }
  void write(ByteWriter& out) const override {
    space_->write(out);
    out.number(static_cast<std::int32_t>(tokens_));
    if (!codes_) return;
    write_quantizer(*codes_, out);
    write_flat_codes(*codes_, out);
  }

  std::unique_ptr<AnnHead> clone() const override { return std::make_unique<ScanHead>(*this); }
  std::int64_t tokens() const override { return tokens_; }
  bool exact() const override { return codes_ == nullptr; }

  void add(const KeyRows& rows, std::int64_t end) override {
    if (codes_) {
      const std::vector<float> keys = space_->keys(rows, tokens_, end);
      codes_->add(end - tokens_, keys.data());
    }
    tokens_ = end;
  }

  void search(const KeyRows& rows, const AnnTask& task, BestHits& best, AnnCost& cost) const override {
    const std::int64_t end = std::min(task.limit, tokens_);
    if (!codes_) return compare_exactly(rows, task.q, 0, end, best, cost);
    const KeySpace::Query query = space_->query(task.q);
    const std::unique_ptr<faiss::DistanceComputer> products(codes_->get_distance_computer());
    products->set_query(query.q.data());
    for (std::int64_t p = 0; p < end; ++p) {
      best.offer((*products)(p) + query.offset, static_cast<std::int32_t>(p));
    }
    cost.keys += static_cast<std::uint64_t>(end);
    cost.index_bytes += static_cast<std::uint64_t>(end) * codes_->sa_code_size();
  }

  std::uint64_t bytes() const override {
    return space_->bytes() + (codes_ ? static_cast<std::uint64_t>(tokens_) * codes_->sa_code_size() : 0);
  }

 private:
  std::shared_ptr<const KeySpace> space_;
  std::unique_ptr<faiss::Index> codes_;  // null: the rows
  std::int64_t tokens_ = 0;
};

}  // namespace

std::unique_ptr<AnnHead> make_scan_head(AnnParts parts, const AnnTraining& training) {
  return std::make_unique<ScanHead>(std::move(parts), training);
}

std::unique_ptr<AnnHead> read_scan_head(AnnParts parts, int head_dim, IndexReader& in) {
  return std::make_unique<ScanHead>(std::move(parts), head_dim, in);
}

}  // namespace hayloft::index
