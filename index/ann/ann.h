#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/host/threads.h"
#include "offload/store/store.h"

// Approximate search over the keys of the store: Faiss' indices, with codes, lists and links but no second copy of K
// (docs/ann.md).
namespace hayloft::index {

class AnnHead;

// Says as what an index is built.
struct AnnOptions {
  // A Faiss factory string: Flat; IVFn or HNSWm with Flat, SQ8, SQ6, SQ4, SQfp16 or PQm behind it; those codes by
  // themselves; with codes, OPQ or PCA in front. Flat means the rows of the store, read in place. Empty: what suits the
  // length, see default_ann_factory().
  std::string factory;
  // Built for queries that are not distributed as the keys are: keys without their mean; IVF ranks its lists by how far
  // the keys in them reach along the query as well, in the directions that the queries of the prompt set apart; HNSW
  // links keys that are near each other once their norms are made equal.
  bool query_aware = true;
};

// IVFn,Flat, n a power of two near 4 sqrt(tokens).
std::string default_ann_factory(std::int64_t tokens);

// Throws Error when `factory` is none of the above for keys of dimension d. Empty is fine.
void check_ann_factory(const std::string& factory, int head_dim);

// Says what a search of such an index reads besides keys: AnnSearch::probes concerns lists, ef a graph, rerank codes.
struct AnnTraits {
  bool lists = false, graph = false, codes = false;
};
AnnTraits ann_traits(const std::string& factory,
                     int head_dim);  // of an empty one: lists; throws as check_ann_factory()

// About what an index of one head with so many keys takes, in bytes.
std::uint64_t ann_bytes(const AnnOptions& options, std::int64_t tokens, int head_dim);

// The request of a search.
struct AnnSearch {
  int query_heads = 0;     // Hq, a multiple of Hkv
  std::int64_t limit = 0;  // positions [0, limit) may be found, limit <= view.tokens
  int k = 0;               // positions per query head, k <= limit
  int probes = 0;          // IVF: lists looked into; 0: 1/16 of them
  int ef = 0;              // HNSW: keys kept in sight; 0: 2 k; never fewer than are sought
  int rerank = 0;          // codes: this many times k are sought by their codes and ranked by their rows; 0: not ranked
};

// Counts what a search looked at, all query heads together.
struct AnnCost {
  std::uint64_t keys = 0;         // inner products with a key or its code
  std::uint64_t index_bytes = 0;  // centroids, lists, links and codes
  std::uint64_t row_bytes = 0;    // keys read from the rows

  AnnCost& operator+=(const AnnCost& other);
};

// An index of every KV head of every layer of one sequence's store. Positions are the store's, from 0. Copies of it
// (fork()) share what has been built until one of them adds to it. Searching is thread-safe; nothing else may go on
// meanwhile, but forks do not disturb each other. A layer that it has not got, as all are of one that was moved from,
// is a programmer's mistake: std::logic_error.
class Ann {
 public:
  // Throws Error on a factory string that does not fit.
  Ann(const AnnOptions& options, int layers, int kv_heads, int head_dim);
  Ann(Ann&&) noexcept;
  Ann& operator=(Ann&&) noexcept;
  ~Ann();

  Ann fork() const;

  // Queries of the prompt, f32 [n][Hq][d], for query-aware indices: what counts is what was seen when the index is
  // trained, which is in the first sync_with_store() that has enough keys.
  void see_queries(int layer, const float* q, int n, int query_heads);

  // Told how many of `total` keys, in tokens times layers, are in. Throw to stop.
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

  // Takes in what the stores hold by now, the same number of tokens in each; views [layers]. A long way behind, it adds
  // all there is, anew if that is far more than it was trained on. A block or two behind and without progress, as in
  // decoding, it adds step_tokens a call, so that no step waits long, and searches look at the rest exactly. Throws
  // Error when the context is too short to train this kind of index. If it or progress throws, the index is as before
  // or further on.
  void sync_with_store(std::span<const offload::LayerView> views, const offload::Threads& threads,
                       const Progress& progress = {});
  static constexpr std::int64_t step_tokens = 32;

  // Returns what has been built, as bytes; and such bytes taken back. Numbers are little-endian. Throws Error on bytes
  // that are damaged, or of another kind of index or another shape than this one's.
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> saved);

  // Keeps the queries that were seen and drops everything else that was built: the next sync_with_store() may be of
  // other keys.
  void forget_keys();

  std::int64_t tokens(int layer) const;  // positions [0, tokens) are indexed

  // The k positions with the largest inner products that are found, for each query head: positions out i32 [Hq][k],
  // ascending and distinct. q is f32 [Hq][d]. Positions from tokens() on are compared exactly. Where fewer than k are
  // found, the newest of the others fill up.
  AnnCost search(int layer, const offload::LayerView& view, const float* q, const AnnSearch& search,
                 const offload::Threads& threads, std::int32_t* positions) const;

  std::uint64_t bytes() const;                             // shared parts included
  const std::string& factory() const { return factory_; }  // as built; empty before

 private:
  struct Slot;  // one head of one layer
  Ann(const Ann&);
  Slot& slot(int layer, int head);
  const Slot& slot(int layer, int head) const;
  void build(std::span<const offload::LayerView> views, std::int64_t tokens, const offload::Threads& threads);

  AnnOptions options_;
  std::string factory_;
  int layers_;
  int kv_heads_;
  int head_dim_;
  std::int64_t trained_on_ = 0;  // tokens there were; 0: nothing is built
  std::vector<Slot> slots_;      // [layers][Hkv]
};

}  // namespace hayloft::index
