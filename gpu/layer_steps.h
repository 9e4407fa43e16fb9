#pragma once

#include <cstdint>

// Parts of a layer between its products, each of which a device may do at once. Every result is, to the bit, that of
// the operations of gpu/backend.h which a part consists of.
namespace hayloft::gpu {

// Rotary position embedding, half-split layout: component i pairs with i + pairs. angle = position *
// inverse_frequency[i]; what is rotated is also multiplied by `magnitude`. Components from 2 pairs on stay as they are.
struct Rope {
  const float* inverse_frequency = nullptr;  // f32 [pairs]
  int pairs = 0;                             // 0: d / 2
  float magnitude = 1;

  int pairs_of(int d) const { return pairs > 0 ? pairs : d / 2; }
};

// add() of x to y, then flag_nonfinite() of y, then rms_norm() of y into normed. No two of y, x and normed may overlap.
struct AddAndNorm {
  float* y = nullptr;  // f32 [rows][n]
  const float* x = nullptr;
  int rows = 0;
  int n = 0;
  std::int32_t* flag = nullptr;  // null: nothing is flagged
  std::int32_t tag = 0;
  const float* weight = nullptr;  // f32 [n]; null: there is no norm
  float eps = 0;
  float* normed = nullptr;  // f32 [rows][n], where there is a weight
};

// The heads of the T tokens that come next in a sequence. Each is normed by rms_norm(), queries and keys are turned by
// rope(), and keys and values go where append() puts them.
struct NewHeads {
  float* q = nullptr;  // f32 [T][Hq][d], changed; null: keys and values alone
  int query_heads = 0;
  float* k = nullptr;  // f32 [T][Hkv][d], undefined afterwards
  float* v = nullptr;  // likewise
  int T = 0;
  const float* q_norm = nullptr;  // f32 [d]; null: these are not normed
  const float* k_norm = nullptr;
  const float* v_norm = nullptr;
  float eps = 0;
  Rope rope = {};  // without frequencies nothing is turned
};

}  // namespace hayloft::gpu
