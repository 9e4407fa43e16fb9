#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/attention/attender.h"
#include "runtime/cluster/part.h"

namespace hayloft::runtime::cluster {

// Attention with a rest by scores over ranks. Each rank attends to its part exactly, makes masses of its own positions,
// and gives the best of its own by mass over random number, which belongs to the whole position: of these the best are
// those that one machine draws, as with the selection of positions. Then each reads the values drawn that are its own.
struct RankRest {
  Communicator& ranks;
  const Step& step;
  const SelectionPlan& plan;
  const Part& part;
  const Ranking& ranking;
  Rest rest;

  // Writes the output, [Hq][d] in host memory, and fills the step's estimate; returns the shares of the softmax that
  // lie on what is attended exactly. `what` is the own part of that, `taken` are the positions of all ranks, and
  // mean_value the mean of V over every token, [Hq][d], asked for where it is needed. An all-gather of the parts, one
  // of the masses or of the best of each rank, and with draws one of what was read of them.
  std::vector<float> attend(const gpu::Attended& what, const std::vector<std::int32_t>& taken,
                            const std::function<std::vector<float>()>& mean_value, std::vector<float>& out) const;
};

// Returns what a rank gives to the others of one layer's rest, in so many all-gathers, beside the parts of attention.
// lines: whether the ranking needs any, over logits of a sample of the positions.
struct RestMessages {
  std::uint64_t gathered = 0;
  std::uint64_t bytes = 0;
};
RestMessages rest_messages(const SelectionPlan& plan, int query_heads, int head_dim, bool lines, Rest rest);

}  // namespace hayloft::runtime::cluster
