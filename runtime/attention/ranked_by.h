#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "index/scan/search.h"
#include "index/scan/sparq_query.h"
#include "runtime/attention/method.h"

namespace hayloft::runtime {

// What a search over ranks ranks by: logits s[h][t] = weights[h] . K[t][components], the temperature divided out.
struct RankedBy {
  int rank = 0;
  std::vector<std::int32_t> components;  // [Hkv][rank]
  std::vector<std::uint8_t> planes;      // [Hkv][rank], of columns in planes: how many are read of each; empty: all
  std::vector<float> weights;            // [Hq][rank]
  index::GroupRule rule = index::GroupRule::softmax;
  index::SelectPer per = index::SelectPer::query_head;
  index::KeySource keys = index::KeySource::columns;
  bool with_alpha = false;  // whether the softmax mass of what is attended is wanted
  // Columns made from the own keys that are searched in the place of the store's, an entry for so many tokens; a plan
  // of the search then counts entries. None: the store's own.
  std::optional<offload::LayerView> derived = {};
  int entry_tokens = 1;
  bool tail = true;                      // whether softmaxes run over the tail as well
  std::vector<float> tail_weights = {};  // [Hq][d] of those, where weights are not of components of K
  // The same search by the backend, of queries [Hq][d] in device memory: then nothing else is there but the rule and
  // with_alpha.
  struct OnDevice {
    const float* q = nullptr;
    gpu::SparqSelect select;
  };
  std::optional<OnDevice> on_device = {};
};
RankedBy exact_logits(const Step& step, const float* q, const MethodOptions& method);
// Of the components and planes that SparQ's step 1 reads. On the device where that searches in parts and the rank has
// blocks.
RankedBy sparq_logits(const Step& step, const float* q, const MethodOptions& method, const gpu::SparqSelect& select);
RankedBy derived_logits(const Step& step, const offload::LayerView& columns, int count, std::vector<float> weights,
                        const MethodOptions& method);

}  // namespace hayloft::runtime
