#pragma once

#include <cstdint>

// Defines what gated_delta.cpp hands to its loops.
namespace hayloft::gpu {

// The tokens of a chunk as some columns of one head's state see them.
struct DeltaTokens {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;     // of the first column
  std::int64_t stride = 0;      // floats from token to token of q, k and v
  const float* keep = nullptr;  // the factor of the state, [T][heads]
  const float* beta = nullptr;  // likewise, of what a token changes
  std::int64_t heads = 0;
  float* out = nullptr;  // of the first column
  std::int64_t out_stride = 0;
  int count = 0;
};

}  // namespace hayloft::gpu
