#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "index/scan/search.h"
#include "index/scan/sparq_query.h"
#include "runtime/attention/selection_plan.h"
#include "runtime/attention/step.h"

namespace hayloft::runtime {

// Ranks the positions of one step: all that a selecting method says of it. Who selects by it, on the device,
// on the host or over ranks, is the Attender's business.
struct Ranking {
  // The thing that positions are scored by.
  enum class Source : std::uint8_t {
    given,       // `positions` are chosen already
    components,  // r components or so many planes of K, as SparQ's step 1 chooses them: on the device
    keys,        // q . K / sqrt(d) of every key, near the memory
    derived      // columns made from the keys, near the memory
  };
  Source source = Source::given;
  index::RankingOptions by = {};
  bool with_alpha = false;  // whether the share of the softmax that lies on what is attended is wanted
  bool keep = false;        // whether the scores are wanted once more: Attender::attend_with_rest()

  std::vector<std::int32_t> positions = {};  // given: [lists][k] of the plan, ascending

  // derived: the columns, an entry for so many tokens, of which whole entries are selected; `by.rank` of them.
  offload::LayerView columns = {};
  int entry_tokens = 1;
  std::vector<float> weights = {};  // [Hq][by.rank], the temperature divided out
  // [Hq][d], what keys that have no entry are multiplied with, those of the tail; empty: softmaxes run over the entries
  // alone.
  std::vector<float> tail_weights = {};
};

// Positions that the method has chosen itself, [lists][k] of the plan.
inline Ranking given_positions(std::vector<std::int32_t> positions) {
  return {.positions = std::move(positions)};
}
// By the components or planes that SparQ's step 1 reads.
inline Ranking by_components(const index::RankingOptions& by, bool with_alpha) {
  return {.source = Ranking::Source::components, .by = by, .with_alpha = with_alpha};
}
// By the products with every key.
inline Ranking by_keys(const index::RankingOptions& by, bool with_alpha) {
  return {.source = Ranking::Source::keys, .by = by, .with_alpha = with_alpha};
}

// The plan in entries of the ranking.
SelectionPlan in_entries(const SelectionPlan& plan, const Ranking& ranking);
// Entries that were selected by it, as positions.
std::vector<std::int32_t> as_positions(std::vector<std::int32_t> entries, const Ranking& ranking);

// A ranking made ready to be searched by on the host: logits s[h][t] = weights[h] . K[t][components].
class HostRanking {
 public:
  // Waits for the device where the query is needed.
  HostRanking(const Step& step, const Ranking& ranking);

  // Searches the store, or what was derived from it. Valid while this lives.
  index::ColumnSearch search(std::int64_t limit, int k) const;
  // [Hq][d], by which whole keys have the same logits.
  std::vector<float> key_weights() const;

 private:
  const Step& step_;
  const Ranking& ranking_;
  index::SparqQuery query_;
  index::KeySource keys_ = index::KeySource::columns;
};

}  // namespace hayloft::runtime
