#include "runtime/checkpoint/fused.h"

#include <cstddef>

namespace hayloft::runtime {
namespace {

// `name` with its ending replaced, where it has that one.
std::optional<std::string> with_ending(std::string_view name, std::string_view ending, std::string_view replacement) {
  if (!name.ends_with(ending)) return std::nullopt;
  return std::string(name.substr(0, name.size() - ending.size())).append(replacement);
}

}  // namespace

std::optional<FusedPart> fused_part(std::string_view name, const ModelConfig& config) {
  if (!config.fused) return std::nullopt;
  const int q = config.query_heads * config.head_dim;
  const int kv = config.kv_heads * config.head_dim;
  const int inner = config.intermediate_size;
  struct Part {
    std::string_view own, fused;
    int first_row, rows, fused_rows;
  };
  const Part parts[] = {
      {"self_attn.q_proj.weight", "self_attn.qkv_proj.weight", 0, q, q + 2 * kv},
      {"self_attn.k_proj.weight", "self_attn.qkv_proj.weight", q, kv, q + 2 * kv},
      {"self_attn.v_proj.weight", "self_attn.qkv_proj.weight", q + kv, kv, q + 2 * kv},
      {"mlp.gate_proj.weight", "mlp.gate_up_proj.weight", 0, inner, 2 * inner},
      {"mlp.up_proj.weight", "mlp.gate_up_proj.weight", inner, inner, 2 * inner},
  };
  for (const Part& part : parts) {
    if (auto fused = with_ending(name, part.own, part.fused)) {
      return FusedPart{std::move(*fused), part.first_row, part.rows, part.fused_rows};
    }
  }
  return std::nullopt;
}

CheckpointTensor rows_of(const CheckpointTensor& whole, const FusedPart& part) {
  const std::size_t row_bytes = whole.data.size() / static_cast<std::size_t>(part.fused_rows);
  CheckpointTensor tensor = whole;
  tensor.data = whole.data.subspan(static_cast<std::size_t>(part.first_row) * row_bytes,
                                   static_cast<std::size_t>(part.rows) * row_bytes);
  return tensor;
}

}  // namespace hayloft::runtime
