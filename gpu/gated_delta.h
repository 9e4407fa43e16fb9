#pragma once

#include <cstdint>

namespace hayloft::gpu {

// The shape of a layer of gated delta rules. Its inputs of a token are queries and keys [Hk][dk] and values [Hv][dv],
// side by side: channels.
struct DeltaShape {
  int key_heads = 0;    // Hk
  int value_heads = 0;  // Hv, a multiple of Hk
  int key_dim = 0;      // dk, at most most_key_dim
  int value_dim = 0;    // dv
  int kernel = 0;       // inputs that the convolution takes, the token's own included; 1 to most_kernel
  // Value head h goes with key head h modulo Hk, instead of h Hk / Hv.
  bool heads_in_turns = false;

  static constexpr int most_key_dim = 256;
  static constexpr int most_kernel = 8;

  std::int64_t channels() const { return 2 * std::int64_t{key_heads} * key_dim + values(); }
  std::int64_t values() const { return std::int64_t{value_heads} * value_dim; }
  std::int64_t state_floats() const { return values() * key_dim; }
  // Counts what it keeps of a sequence: DeltaState.
  std::int64_t kept_floats() const { return state_floats() + (kernel - 1) * channels(); }
  int key_head_of(int value_head) const {
    return heads_in_turns ? value_head % key_heads : value_head * key_heads / value_heads;
  }

  bool operator==(const DeltaShape&) const = default;
};

// Throws Error where a shape is not as DeltaShape says.
void require_delta_shape(const DeltaShape& shape);

// A layer of gated delta rules (Gated DeltaNet, arXiv 2412.06464, as the architecture qwen3_5 has it). With s the state
// of a value head, [dk][dv], and q and k those of its key head:
//   x' = silu of the sum over i of convolution[.][i] times the channel's input of kernel - 1 - i tokens before
//   q = q' / sqrt((|q'|^2 + 1e-6) dk),  k = k' / sqrt(|k'|^2 + 1e-6),  v = v'
//   s = exp(-decay ln(1 + exp(a + step_bias))) s;  s = s + k (sigmoid(b) (v - s^T k))^T;  y = s^T q
//   out = y / sqrt(mean(y^2) + eps) norm silu(gate)
struct DeltaLayer {
  DeltaShape shape;
  const float* convolution = nullptr;  // f32 [channels][kernel]
  const float* decay = nullptr;        // f32 [Hv], above zero
  const float* step_bias = nullptr;    // f32 [Hv]
  const float* norm = nullptr;         // f32 [dv]
  float eps = 1e-6f;
};

// The memory that such a layer keeps of a sequence, before and behind the tokens of one operation: f32 [Hv][dk][dv],
// and behind it [kernel - 1][channels], the inputs of the newest tokens, the oldest first. The two may be the same
// memory.
struct DeltaState {
  const float* before = nullptr;  // null at the beginning of a sequence: all zero
  float* after = nullptr;
};

}  // namespace hayloft::gpu
