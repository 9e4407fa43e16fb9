#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "index/ann/ann.h"
#include "index/ann/key_rows.h"
#include "offload/byte_stream.h"

// The index of one KV head in one layer, of whatever kind: what Ann is made of.
namespace hayloft::index {

struct Hit {
  float score;
  std::int32_t position;
};

// The best of what is offered; ties go to the smaller position, and NaN is dropped.
class BestHits {
 public:
  explicit BestHits(std::size_t capacity) : capacity_(capacity) {}

  void offer(float score, std::int32_t position);
  void offer(const float* scores, const std::int32_t* positions, int n);
  bool full() const { return hits_.size() >= capacity_; }
  float least() const { return hits_.front().score; }  // the worst score kept; some must be
  std::size_t capacity() const { return capacity_; }
  std::vector<Hit> take();  // the best first

 private:
  std::size_t capacity_;
  std::vector<Hit> hits_;  // a heap, the worst in front
};

// Offers positions [begin, end) by their rows.
void compare_exactly(const KeyRows& rows, const float* q, std::int64_t begin, std::int64_t end, BestHits& best,
                     AnnCost& cost);

struct AnnTask {
  const float* q = nullptr;  // f32 [d]
  std::int64_t limit = 0;    // positions at and after it are not wanted
  int probes = 0;            // 0: the kind's own choice
  int ef = 0;
};

class AnnHead {
 public:
  virtual ~AnnHead() = default;
  virtual std::unique_ptr<AnnHead> clone() const = 0;

  // Positions [tokens(), end).
  virtual void add(const KeyRows& rows, std::int64_t end) = 0;
  virtual std::int64_t tokens() const = 0;

  // Offers what it finds, with q . k as far as the codes tell. Thread-safe.
  virtual void search(const KeyRows& rows, const AnnTask& task, BestHits& best, AnnCost& cost) const = 0;

  virtual bool exact() const = 0;  // whether the scores are those of the rows
  virtual std::uint64_t bytes() const = 0;
  virtual void write(ByteWriter& out) const = 0;  // all but the factory string, for read_ann_head()
};

// Sum of q q^T over the queries that the query heads of one KV head put: how much each direction matters to them.
struct QueryMoments {
  std::vector<double> sum;  // [d][d]; empty: none were seen
  std::int64_t queries = 0;

  void add(const float* q, int d);
};

// Trained on keys of [0, tokens), of which it holds none yet. options.factory is not empty. Throws Error.
std::unique_ptr<AnnHead> make_ann_head(const AnnOptions& options, const KeyRows& rows, std::int64_t tokens,
                                       const QueryMoments& queries);

// Reads such an index from what its write() gave. Throws Error on anything that it cannot have given.
std::unique_ptr<AnnHead> read_ann_head(const AnnOptions& options, int head_dim, IndexReader& in);

// The fewest keys that such an index can be trained on; 0: it needs none.
std::int64_t training_keys(const std::string& factory, int head_dim);

}  // namespace hayloft::index
