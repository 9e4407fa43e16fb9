#include "index/ann/codes.h"

#include <faiss/IndexFlat.h>
#include <faiss/IndexHNSW.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexIVFPQ.h>
#include <faiss/IndexPQ.h>
#include <faiss/IndexPreTransform.h>
#include <faiss/IndexScalarQuantizer.h>
#include <faiss/impl/FaissException.h>
#include <faiss/index_factory.h>
#include <omp.h>

#include <algorithm>

#include "index/scan/blas_places.h"
#include "offload/error.h"

namespace hayloft::index {
namespace {

// Faiss matches a factory string by std::regex, which recurses once per character. The longest one that makes sense,
// such as OPQ64_128,IVF65536,PQ64x8, has a tenth of this.
constexpr std::size_t longest_factory = 200;
constexpr std::uint64_t largest_number = 1 << 20;  // of lists: Faiss makes them as it reads the string

constexpr int most_widened = 4;  // OPQ makes at most so many times the components of a key, which say nothing more

constexpr const char* kinds =
    "Flat, IVFn or HNSWm with Flat, SQ8, SQ6, SQ4, SQfp16 or PQm behind it, those codes alone, and OPQ or PCA in front "
    "of codes";

[[noreturn]] void refuse(const std::string& factory, const std::string& why) {
  fail("--attn ann:{}: {}; there is {}", factory, why, kinds);
}

// Refuses what Faiss would crash on, or fill the memory for.
void check_limits(const std::string& factory) {
  if (factory.size() > longest_factory) {
    fail("--attn ann: a factory string of {} characters; at most {} are read", factory.size(), longest_factory);
  }
  std::uint64_t number = 0;
  for (const char c : factory) {
    number = c >= '0' && c <= '9' ? number * 10 + static_cast<std::uint64_t>(c - '0') : 0;
    if (number > largest_number) {
      fail("--attn ann:{}: a number in it is too large; at most {} is read", factory, largest_number);
    }
  }
  if (factory.find("Lattice") != std::string::npos) refuse(factory, "this kind of code is not one that hayloft has");
  // Faiss divides by the number of codes.
  for (std::size_t at = factory.find("PQ"); at != std::string::npos; at = factory.find("PQ", at + 1)) {
    const std::size_t digits = std::min(factory.find_first_not_of("0123456789", at + 2), factory.size());
    if (digits > at + 2 && factory.find_first_not_of('0', at + 2) >= digits) {
      refuse(factory, "a key has one code behind PQ at least");
    }
  }
}

// Refuses what Faiss would refuse when it is trained, which is after the prompt has been read.
void check_transform(const std::string& factory, const faiss::VectorTransform& transform) {
  const auto* pca = dynamic_cast<const faiss::PCAMatrix*>(&transform);
  const auto* opq = dynamic_cast<const faiss::OPQMatrix*>(&transform);
  if (pca == nullptr && opq == nullptr) refuse(factory, "this kind of transform is not one that hayloft has");
  if (pca != nullptr && (pca->d_out < 1 || pca->d_out > pca->d_in)) {
    fail("--attn ann:{}: PCA takes keys of {} components to 1 to {}, not to {}", factory, pca->d_in, pca->d_in,
         pca->d_out);
  }
  if (pca != nullptr && pca->eigen_power != 0) refuse(factory, "whitening changes the order of inner products");
  if (opq != nullptr && (opq->d_out < 1 || opq->d_out > most_widened * opq->d_in)) {
    fail("--attn ann:{}: OPQ takes keys of {} components to 1 to {}, not to {}", factory, opq->d_in,
         most_widened * opq->d_in, opq->d_out);
  }
  if (opq != nullptr && (opq->M < 1 || opq->d_out % opq->M != 0)) {
    fail("--attn ann:{}: {} components are no multiple of the {} behind OPQ; take a divisor", factory, opq->d_out,
         opq->M);
  }
}

// Sets it up to be trained in a second or so, and counts the keys that this takes. Throws Error for other codes than of
// 1 to 8 bits.
void set_up(const std::string& factory, faiss::ProductQuantizer& pq, AnnParts& parts) {
  if (pq.nbits < 1 || pq.nbits > 8) refuse(factory, "codes have 1 to 8 bits");
  pq.cp.niter = 10;
  pq.cp.min_points_per_centroid = 1;
  parts.training_keys = std::max<std::int64_t>(parts.training_keys, std::int64_t{1} << pq.nbits);
}

std::unique_ptr<faiss::Index> make_faiss_index(const std::string& factory, int d) {
  check_limits(factory);
  try {
    return std::unique_ptr<faiss::Index>(faiss::index_factory(d, factory.c_str(), faiss::METRIC_INNER_PRODUCT));
  } catch (const faiss::FaissException& error) {
    if (error.msg.find("multiple") != std::string::npos || error.msg.find("divis") != std::string::npos ||
        error.msg.find("% M") != std::string::npos) {
      fail("--attn ann:{}: the head dimension, {}, is not a multiple of the number of codes behind PQ; take a divisor",
           factory, d);
    }
    refuse(factory, "Faiss cannot read that factory string for keys of dimension " + std::to_string(d));
  } catch (const std::exception&) {  // a number that does not fit
    refuse(factory, "Faiss cannot read that factory string");
  }
}

// Takes the codes of a scan or of a graph's storage; null for rows.
std::unique_ptr<faiss::Index> flat_codes(const std::string& factory, std::unique_ptr<faiss::Index> index,
                                         AnnParts& parts) {
  if (dynamic_cast<faiss::IndexFlat*>(index.get()) != nullptr) return nullptr;
  if (auto* pq = dynamic_cast<faiss::IndexPQ*>(index.get())) {
    set_up(factory, pq->pq, parts);
    pq->do_polysemous_training = false;
    // The quantizer of a graph takes no metric, and compares by Euclidean distance.
    pq->metric_type = faiss::METRIC_INNER_PRODUCT;
    return index;
  }
  if (dynamic_cast<faiss::IndexScalarQuantizer*>(index.get()) != nullptr) {
    parts.training_keys = std::max<std::int64_t>(parts.training_keys, 1);
    return index;
  }
  refuse(factory, "this kind of code is not one that hayloft has");
}

}  // namespace

AnnParts parse_ann_factory(const std::string& factory, int head_dim) {
  std::unique_ptr<faiss::Index> index = make_faiss_index(factory, head_dim);
  AnnParts parts;
  if (auto* pre = dynamic_cast<faiss::IndexPreTransform*>(index.get())) {
    pre->own_fields = false;
    std::unique_ptr<faiss::Index> coded(pre->index);
    for (faiss::VectorTransform* transform : pre->chain) parts.chain.emplace_back(transform);
    index = std::move(coded);
  }
  for (const auto& transform : parts.chain) {
    if (dynamic_cast<faiss::LinearTransform*>(transform.get()) == nullptr) {
      refuse(factory, "only linear transforms keep the order of inner products");
    }
    check_transform(factory, *transform);
    if (!transform->is_trained) parts.training_keys = std::max(256, head_dim);
  }
  if (auto* ivf = dynamic_cast<faiss::IndexIVF*>(index.get())) {
    parts.kind = AnnParts::Kind::lists;
    parts.lists = static_cast<int>(ivf->nlist);
    if (parts.lists < 1) refuse(factory, "keys lie in one list at least");
    parts.training_keys = std::max<std::int64_t>(parts.training_keys, parts.lists);
    if (dynamic_cast<faiss::IndexFlat*>(ivf->quantizer) == nullptr) {
      refuse(factory, "lists are found by their centroids alone");
    }
    if (dynamic_cast<faiss::IndexIVFFlat*>(ivf) == nullptr) {
      if (auto* pq = dynamic_cast<faiss::IndexIVFPQ*>(ivf)) {
        set_up(factory, pq->pq, parts);
        pq->do_polysemous_training = false;  // for comparing codes with codes, which takes long and nobody does
      } else if (dynamic_cast<faiss::IndexIVFScalarQuantizer*>(ivf) == nullptr) {
        refuse(factory, "this kind of code is not one that hayloft has");
      }
      parts.codes = std::move(index);
    }
  } else if (auto* hnsw = dynamic_cast<faiss::IndexHNSW*>(index.get())) {
    parts.kind = AnnParts::Kind::graph;
    // Graphs of fewer links have one level at most, and Faiss would read behind the end of its table of levels.
    if (hnsw->hnsw.cum_nneighbor_per_level.size() < 3) refuse(factory, "a key has two links at least");
    parts.links = hnsw->hnsw.nb_neighbors(1);
    if (parts.links < 1) refuse(factory, "a key has two links at least");
    if (!hnsw->own_fields) refuse(factory, "this kind of graph is not one that hayloft has");
    hnsw->own_fields = false;
    parts.codes = flat_codes(factory, std::unique_ptr<faiss::Index>(hnsw->storage), parts);
  } else {
    parts.codes = flat_codes(factory, std::move(index), parts);
  }
  if (!parts.codes && !parts.chain.empty()) {
    refuse(factory, "Flat reads the keys where they lie, so nothing can transform them; take codes, such as SQfp16");
  }
  return parts;
}

std::int64_t training_keys(const std::string& factory, int head_dim) {
  return parse_ann_factory(factory, head_dim).training_keys;
}

void check_ann_factory(const std::string& factory, int head_dim) {
  if (!factory.empty()) parse_ann_factory(factory, head_dim);
}

AnnTraits ann_traits(const std::string& factory, int head_dim) {
  if (factory.empty()) return {.lists = true};
  const AnnParts parts = parse_ann_factory(factory, head_dim);
  return {parts.kind == AnnParts::Kind::lists, parts.kind == AnnParts::Kind::graph, parts.codes != nullptr};
}

std::uint64_t ann_bytes(const AnnOptions& options, std::int64_t tokens, int head_dim) {
  const AnnParts parts =
      parse_ann_factory(options.factory.empty() ? default_ann_factory(tokens) : options.factory, head_dim);
  const std::uint64_t code = !parts.codes ? 0
                             : parts.kind == AnnParts::Kind::lists
                                 ? static_cast<faiss::IndexIVF&>(*parts.codes).code_size
                                 : parts.codes->sa_code_size();
  std::uint64_t per_key = code;
  std::uint64_t lists = 0;
  if (parts.kind == AnnParts::Kind::lists) {
    per_key += parts.codes ? sizeof(FaissId) : sizeof(std::int32_t);
    // Centroid, spread, size and the list itself.
    lists = static_cast<std::uint64_t>(parts.lists) * (static_cast<std::uint64_t>(head_dim) * 4 + 36 * 4 + 28);
  } else if (parts.kind == AnnParts::Kind::graph) {
    // 2 m links on the lowest layer and, shared by m keys, m on those above; where they are, the level, the norm.
    per_key += (2 * static_cast<std::uint64_t>(parts.links) + 1) * 4 + 8 + 4 + 4;
  }
  return static_cast<std::uint64_t>(tokens) * per_key + lists;
}

std::unique_ptr<AnnHead> make_ann_head(const AnnOptions& options, const KeyRows& rows, std::int64_t tokens,
                                       const QueryMoments& queries) {
  const BlasPlace place;
  omp_set_num_threads(1);  // of this thread; the others are busy with heads of their own
  AnnParts parts = parse_ann_factory(options.factory, rows.dim());
  const AnnTraining training{rows, tokens, queries, options.query_aware};
  switch (parts.kind) {
    case AnnParts::Kind::lists:
      return make_lists_head(std::move(parts), training);
    case AnnParts::Kind::graph:
      return make_graph_head(std::move(parts), training);
    case AnnParts::Kind::scan:
      break;
  }
  return make_scan_head(std::move(parts), training);
}

std::unique_ptr<AnnHead> read_ann_head(const AnnOptions& options, int head_dim, IndexReader& in) {
  AnnParts parts = parse_ann_factory(options.factory, head_dim);
  switch (parts.kind) {
    case AnnParts::Kind::lists:
      return read_lists_head(std::move(parts), head_dim, in);
    case AnnParts::Kind::graph:
      return read_graph_head(std::move(parts), head_dim, in);
    case AnnParts::Kind::scan:
      break;
  }
  return read_scan_head(std::move(parts), head_dim, in);
}

}  // namespace hayloft::index
