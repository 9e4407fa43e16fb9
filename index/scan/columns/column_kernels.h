#pragma once

#include <cstddef>
#include <cstdint>

#include "offload/store/layout.h"

// The SIMD kernels of search_columns, dispatched at run time. Score buffers are f32 [heads][stride], one row per query
// head of one KV head, aligned to 64 bytes with a stride that is a multiple of 16. Nothing here allocates or throws.
namespace hayloft::index {

// Tokens of a quantisation group, for each of which a maximum is kept, whatever the format of the columns and however
// short their blocks: 64 f16 values of a column are two cache lines, the pair that the processor fetches together.
inline constexpr int quant_group_tokens = offload::BlockLayout::scale_tokens;

// Bytes that so many tokens of a column take, or of one of its planes.
constexpr int column_bytes(offload::ColumnFormat format, int tokens) {
  return tokens * offload::bits_of(format) / 8 / traits_of(format).planes;
}

// The weights that one KV head's query heads multiply with.
struct HeadQuery {
  offload::ColumnFormat format = offload::ColumnFormat::f16;
  const std::int64_t* offsets = nullptr;        // [rank] bytes from component 0 to each chosen one, in a block
  const std::int64_t* scale_offsets = nullptr;  // [rank] the same for the scales; null: f16
  const float* weights = nullptr;               // [heads][weight_stride]
  int weight_stride = 0;
  int rank = 0;
  int heads = 0;
  const std::uint8_t* planes = nullptr;  // [rank] how many are read, 1 to 4, more before fewer; null: not planes
  std::int64_t plane_bytes = 0;          // from one plane of a column to the next
};

// Some consecutive tokens of one block, from the first one's place in component 0. The first token is a multiple of 64.
struct TokenRun {
  const std::byte* columns = nullptr;  // null: no run
  const std::byte* scales = nullptr;   // of the first token; null: f16
  int scale_start = 0;                 // tokens before the first one that share its scale
};

// The way in which a group's scores become one.
enum class GroupScore : std::uint8_t {
  logits,   // sum_h scores[h][t], in the order of h
  softmax,  // sum_h exp(scores[h][t] - reference[h])
};

// The notes to be taken about the scores of one tile, quantisation group by quantisation group. Pointers are to the
// tile's first.
struct TileNotes {
  float* head_maxima = nullptr;  // [heads][maxima_stride] the largest of each head's scores
  std::int64_t maxima_stride = 0;
  // [heads][maxima_stride] the largest of the other scores, infinity where several are the largest, and where in the
  // quantisation group the largest is. Null: not wanted.
  float* seconds = nullptr;
  std::uint8_t* places = nullptr;
  float* group_maxima = nullptr;  // the largest group score; null: not wanted
  GroupScore group_score = GroupScore::logits;
  const float* references = nullptr;  // [heads]; null: no sums, and no group maxima of softmax
  float* sums = nullptr;              // [heads][16] parts of sum_t exp(scores[h][t] - reference[h]), to be added up
};

// scores[h][t] = sum_j weights[h][j] * K[t][j-th component] for t in [0, tokens) of a run, a key of an integer column
// being level * scale, which f32 holds exactly; up to the next multiple of 64
// they become -infinity if there are notes to take. One fused (or, without FMA, rounded) multiply-add per component in
// the order of j, whatever the length and the alignment of the run: two calls that cover a token agree bit for bit.
// Reads whole vectors of 16 tokens. Meanwhile prefetches the run of as many tokens at `next`.
void score_run(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores, int stride,
               const TileNotes* notes);

// The same of columns in planes, whose scores are made as plane_weights.h says: to the bit on every processor, and
// whatever the length and the alignment of the run.
void score_planes(const HeadQuery& query, const TokenRun& run, const TokenRun& next, int tokens, float* scores,
                  int stride, const TileNotes* notes);

// Prefetches `tokens` tokens of every chosen column of a run.
void prefetch_run(const HeadQuery& query, const TokenRun& run, int tokens);

// Takes the notes of score_run on scores [heads][stride] of n tokens, a multiple of 64.
//
// exp has a relative error below 2e-7 + 2^-23 |x| (the polynomial, then the rounding of the difference and of its
// product with log2 e) and is held at exp(-87) below x = -87; above x = 80 the result means nothing. NaN gives NaN. A
// part of a sum is a chain of one addition per quantisation group.
void take_notes(const float* scores, int stride, int heads, int n, const TileNotes& notes);

// out[t] = the group score of t, for t in [0, n), n a multiple of 64. The same arithmetic for every t.
void group_scores(GroupScore kind, const float* scores, int stride, int heads, int n, const float* reference,
                  float* out);

// Bounds of the group's softmax score sum_h exp(s_h - offset[h]) in each of n quantisation groups, from two sides: its
// heads' maxima alone give max_h and sum_h of exp(maxima[h][i] - offset[h]), and a sum over the group that was noted
// with other references gives that sum times the smallest and the largest ratio of the weights, ratios[i / per_tile] =
// {least, most}. Taken together and widened by what rounding may do. maxima has `stride` elements from head to head;
// maxima, sums, lower and upper are aligned and readable and writable up to n rounded up to a multiple of 64. per_tile
// is a multiple of 4.
struct SoftmaxRatio {
  float least;
  float most;
};
void softmax_bounds(const float* maxima, std::int64_t stride, int heads, const float* sums, std::int64_t n,
                    const float* offset, const SoftmaxRatio* ratios, int per_tile, float* lower, float* upper);

}  // namespace hayloft::index
