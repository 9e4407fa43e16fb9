#pragma once

#include <faiss/Index.h>
#include <faiss/VectorTransform.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "index/ann_head.h"

// What a factory string asks for, taken apart; and the space in which keys are coded. The only header of index/ that
// knows Faiss.
namespace hayloft::index {

using FaissId = decltype(faiss::Index::ntotal);  // idx_t, whose home differs between versions of Faiss

struct AnnParts {
  enum class Kind : std::uint8_t { scan, lists, graph };
  Kind kind = Kind::scan;
  std::vector<std::shared_ptr<faiss::VectorTransform>> chain;  // in front; empty where there are no codes
  std::unique_ptr<faiss::Index> codes;                         // lists: an IndexIVF; null: the rows themselves
  int lists = 0;                                               // IVFn
  int links = 0;                                               // HNSWm
  std::int64_t training_keys = 0;                              // the fewest it can do with
};

// Throws Error naming the factory string.
AnnParts parse_ann_factory(const std::string& factory, int head_dim);

// Keys as an index sees them: without their mean, through a chain of linear transforms. Immutable once made, shared by
// forks.
class KeySpace {
 public:
  // Trains the chain on `sample` [n][d], keys without their mean.
  KeySpace(std::vector<float> mean, std::vector<std::shared_ptr<faiss::VectorTransform>> chain,
           const std::vector<float>& sample);

  KeySpace(std::vector<std::shared_ptr<faiss::VectorTransform>> chain, int head_dim, ByteReader& in);
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

// Per kind; tokens of `rows` to train on.
struct AnnTraining {
  const KeyRows& rows;
  std::int64_t tokens;
  const QueryMoments& queries;
  bool query_aware;
};
std::unique_ptr<AnnHead> make_scan_head(AnnParts parts, const AnnTraining& training);
std::unique_ptr<AnnHead> make_lists_head(AnnParts parts, const AnnTraining& training);
std::unique_ptr<AnnHead> make_graph_head(AnnParts parts, const AnnTraining& training);

std::unique_ptr<AnnHead> read_scan_head(AnnParts parts, int head_dim, ByteReader& in);
std::unique_ptr<AnnHead> read_lists_head(AnnParts parts, int head_dim, ByteReader& in);
std::unique_ptr<AnnHead> read_graph_head(AnnParts parts, int head_dim, ByteReader& in);

// What codes were trained to, of a scan, of a graph's storage or of lists; the codes themselves, of the first two.
void write_quantizer(const faiss::Index& codes, ByteWriter& out);
void read_quantizer(faiss::Index& codes, ByteReader& in);
void write_flat_codes(const faiss::Index& codes, ByteWriter& out);
void read_flat_codes(faiss::Index& codes, std::int64_t keys, ByteReader& in);

}  // namespace hayloft::index
