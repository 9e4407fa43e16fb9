#pragma once

#include <cstdint>

#include "index/scan/search.h"
#include "index/scan/softmax.h"

namespace hayloft::index {

// Keeps what the first pass over the chosen columns found: maxima by which the second pass finds the few places worth
// looking at again, and each query head's softmax in partial sums per tile. No logit is kept. A sum belongs to one tile
// and tiles are added in their order, so nothing depends on the number of threads. Lives in the calling thread's
// scratch memory until that thread scans again.
struct ColumnScan {
  int group = 1;                        // g
  int tile = 0;                         // tokens
  std::int64_t tiles = 0;               // of the view's tokens
  std::int64_t quant_groups = 0;        // of the view's tokens, the last one perhaps partial
  std::int64_t quant_group_stride = 0;  // elements from head to head, a multiple of 64

  // [Hq][quant_group_stride] the largest logit of each quantisation group.
  float* head_maxima = nullptr;
  // [Hq][quant_group_stride] of lists per query head: the largest of the quantisation group's other logits, infinity
  // where several are the largest, and where in the quantisation group the largest is. Nearly always that is all there
  // is to know.
  float* head_seconds = nullptr;
  std::uint8_t* head_places = nullptr;
  // [Hkv][quant_group_stride] the largest summed logit (GroupRule::logits), or the largest sum over the group of
  // exp(s - reference) with the tile's references (GroupRule::softmax). Null where lists are per query head or g = 1.
  float* group_maxima = nullptr;

  // [Hq][tiles]; sums and references are null when the caller wants no softmax and the rule needs none.
  float* tile_maxima = nullptr;
  float* tile_references = nullptr;
  float* tile_sums = nullptr;  // sum of exp(s - reference)
  // [Hq] log-sum-exp over everything as guessed from a sample of the tiles, less a number that the group shares: the
  // reference of every other tile that has no logit far above it. References that are the same everywhere and near the
  // truth keep group_maxima comparable.
  float* guesses = nullptr;

  // Returns a query head's softmax over the view's tokens and what lies outside of them.
  PartialSoftmax softmax(int query_head, PartialSoftmax outside) const;
};

// with_softmax: keep the partial sums. start_max and start_sum [Hq] are the softmax over the positions outside the
// store, for the guess. The view holds at least one token. kept: takes the scores, or is left empty; may be null.
ColumnScan scan_columns(const offload::LayerView& view, const ColumnSearch& search, const offload::Threads& threads,
                        bool with_softmax, const float* start_max, const float* start_sum, KeptScores* kept);

}  // namespace hayloft::index
