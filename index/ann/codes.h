#pragma once

#include <faiss/Index.h>
#include <faiss/VectorTransform.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "index/ann/head.h"
#include "index/ann/key_space.h"

// Takes a factory string apart.
namespace hayloft::index {

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

std::unique_ptr<AnnHead> read_scan_head(AnnParts parts, int head_dim, IndexReader& in);
std::unique_ptr<AnnHead> read_lists_head(AnnParts parts, int head_dim, IndexReader& in);
std::unique_ptr<AnnHead> read_graph_head(AnnParts parts, int head_dim, IndexReader& in);

// Writes what codes were trained to, those of a scan, of a graph's storage or of lists; with the first two also the
// codes themselves.
void write_quantizer(const faiss::Index& codes, ByteWriter& out);
void read_quantizer(faiss::Index& codes, IndexReader& in);
void write_flat_codes(const faiss::Index& codes, ByteWriter& out);
void read_flat_codes(faiss::Index& codes, std::int64_t keys, IndexReader& in);

}  // namespace hayloft::index
