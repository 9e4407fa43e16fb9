#pragma once

#include <cstdint>
#include <functional>

#include "index/scan/ranking_options.h"
#include "offload/host/threads.h"
#include "offload/store/store.h"

// Finding positions near the memory: SparQ's approximate scores over r columns of K, and exact inner products over all
// d of them, are the same scan. Everything here reads the store only; the tail belongs to the device.
namespace hayloft::index {

class KeptScores;

// The form in which K is read: the columns as their format has them, level * scale where they are integers; or K's half
// of the 16-bit rows, whose scores are those of f16 columns to the bit but take longer to read.
enum class KeySource : std::uint8_t { columns, rows };

// Sizes that differ between the lists of a search.
struct ListSize {
  std::int64_t limit = 0;  // positions [0, limit) may be selected, limit <= view.tokens
  int k = 0;               // positions, k <= limit
};

// s[h][t] = sum_j weights[h][j] * K[t][components[j]] for the query heads h of each KV head and the store's positions
// t.
// It looks at r, 1..d, rule and per of its base: the rest has gone into components, planes and weights.
struct ColumnSearch : RankingOptions {
  int query_heads = 0;                       // Hq, a multiple of the view's Hkv
  const std::int32_t* components = nullptr;  // [Hkv][r], in the order in which they are added up
  const float* weights = nullptr;            // [Hq][r]; q already divided by the softmax temperature
  std::int64_t limit = 0;                    // positions [0, limit) may be selected, limit <= view.tokens
  int k = 0;                                 // positions per list, k <= limit
  KeySource keys = KeySource::columns;
  // [Hkv][r] of columns in planes: how many are read of each, the first ones, more before fewer and 0 only at the end,
  // of which nothing is added. Null: all.
  const std::uint8_t* planes = nullptr;
  const ListSize* sizes = nullptr;  // [lists], in place of limit and k, which then are the largest; null: all alike
};

// Lists are the Hkv KV heads or the Hq query heads, by ColumnSearch::per. Ties break towards the smaller position.
struct SearchResult {
  std::int32_t* positions = nullptr;  // out: [lists][k], ascending; always full, up to the list's own k
  // All three may be null when nobody asks for them: lists per query head, and GroupRule::logits, then skip the
  // softmax. In: (max, sum of exp(s - max)) over positions outside the store, (-infinity, 0) for none. Out: over those
  // and the store.
  float* max = nullptr;  // [Hq]
  float* sum = nullptr;  // [Hq]
  // Out: sum of exp(s - max) over the selected positions of the head's list and over [limit, view.tokens), so that mass
  // / sum (with the tail's share added) is SparQ's alpha.
  float* mass = nullptr;  // [Hq]
  // Out, where it is asked for: what each query head gave the positions of its list, [Hq][k]; NaN where NaN left too
  // few. For whoever compares the lists of several stores.
  float* logits = nullptr;
  // Called once all of this is found, where it is given: may take (max, sum) [Hq] to those over more positions than are
  // known here and return true, and positions and logits are then found anew, ranked by them. What is left of (max,
  // sum) comes out. Needs max, sum and logits, and no mass.
  const std::function<bool(float* max, float* sum)>* again = nullptr;
  // Takes the scores of every position, where it is given and they are few enough; else it is left empty.
  KeptScores* kept = nullptr;
};

// Checks the arguments that every search of columns has. Throws Error naming the number that is out of range.
void require_valid(const offload::LayerView& view, const ColumnSearch& search);

// Reads the chosen columns once, tile by tile, keeping a maximum per 64 tokens; only the few tiles that can still hold
// one of the top k are scored again. Exact: the result is that of scoring and ranking everything in f32. Thread-safe.
void search_columns(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads,
                    const SearchResult& result);

// search_columns() beside a softmax (max, sum) f32 [Hq] over positions that are attended to whatever they score, as the
// tail: positions likewise, and alpha f32 [Hq], the share of the softmax over those and the store that lies on them and
// on what is attended of the store, the positions selected and [limit, view.tokens).
void search_with_alpha(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads,
                       const float* max, const float* sum, std::int32_t* positions, float* alpha,
                       KeptScores* kept = nullptr);

// s[h][t] for positions [begin, end) of one KV head, into out [g][end - begin] f32. The same arithmetic as
// search_columns, bit for bit. begin must be a multiple of 64.
void score_columns(const offload::LayerView& view, const ColumnSearch& search, int head, std::int64_t begin,
                   std::int64_t end, float* out);

// The k positions of [0, limit) with the largest inner product with each query head, by Faiss' flat index over an f32
// copy of the keys made block by block: the independent check of search_columns, and an engine a user can choose. query
// is f32 [Hq][d]; positions out: i32 [Hq][k], ascending.
void faiss_flat_search(const offload::LayerView& view, const float* query, int query_heads, std::int64_t limit, int k,
                       const offload::Threads& threads, std::int32_t* positions);

}  // namespace hayloft::index
