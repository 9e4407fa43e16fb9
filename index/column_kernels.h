#pragma once

#include <cstddef>
#include <cstdint>

// The SIMD kernels of search_columns, dispatched at run time. Score buffers are f32 [heads][stride], one row per query
// head of one KV head, aligned to 64 bytes with a stride that is a multiple of 16. Nothing here allocates or throws.
namespace hayloft::index {

// Tokens per maximum: 64 f16 values of a column are two cache lines, the pair that the processor fetches together.
inline constexpr int subtile_tokens = 64;

// What one KV head's query heads multiply with.
struct HeadQuery {
  const std::int32_t* components = nullptr;  // [rank]
  const float* weights = nullptr;            // [heads][rank]
  int rank = 0;
  int heads = 0;
};

// Consecutive tokens of one block: component c of the first of them is the f16 at first + c * column_bytes.
struct ColumnRun {
  const std::byte* first = nullptr;
  std::int64_t column_bytes = 0;
};

// scores[h][t] = sum_j weights[h][j] * K[t][components[j]] for t in [0, tokens); tokens is a multiple of 16. One fused
// (or, without FMA, rounded) multiply-add per component in the order of j, whatever the length and the alignment of the
// run, so two calls that cover a token agree bit for bit. Meanwhile fetches the start of `next` (first may be null).
void score_run(const HeadQuery& query, const ColumnRun& run, const ColumnRun& next, int tokens, float* scores,
               int stride);

// Asks for `tokens` tokens of every column of the run to be brought near.
void prefetch_run(const HeadQuery& query, const ColumnRun& run, int tokens);

// maxima[i] = max of scores[64 i, 64 i + 64); returns the largest. n is a multiple of 64.
float subtile_maxima(const float* scores, int n, float* maxima);

// How a group's scores become one.
enum class GroupScore : std::uint8_t {
  logits,   // sum_h scores[h][t], in the order of h
  softmax,  // sum_h exp(scores[h][t] - reference[h])
};

// out[t] of the above for t in [0, n), n a multiple of 64; out may be scores itself. The same arithmetic for every t.
void group_scores(GroupScore kind, const float* scores, int stride, int heads, int n, const float* reference,
                  float* out);

// sums[h] = sum_t exp(scores[h][t] - reference[h]) for t in [0, n), n a multiple of 64, and, unless group_maxima is
// null, group_maxima[i] = max over the subtile of sum_h exp(scores[h][t] - reference[h]). scratch is f32 [heads][16],
// aligned to 64 bytes.
//
// exp here has a relative error below 2e-7 + 2^-23 |x| (the polynomial, then the rounding of the difference and of its
// product with log2 e) and is held at exp(-87) below x = -87; x must not exceed 80. NaN gives NaN.
void exp_sums(const float* scores, int stride, int heads, int n, const float* reference, float* scratch, float* sums,
              float* group_maxima);

// Bounds, one per subtile, of the group's softmax score sum_h exp(s_h - offset[h]) by its heads' maxima alone:
// lower[i] = max_h exp(maxima[h][i] - offset[h]), upper[i] = sum_h of the same, to exp's accuracy. maxima has `stride`
// elements from head to head; all arrays are readable and writable up to n rounded up to a multiple of 64.
void softmax_bounds(const float* maxima, std::int64_t stride, int heads, std::int64_t n, const float* offset,
                    float* lower, float* upper);

}  // namespace hayloft::index
