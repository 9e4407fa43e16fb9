#include "runtime/checkpoint/fused.h"

#include <charconv>
#include <cstddef>
#include <system_error>
#include <utility>

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

std::vector<FusedPart> expert_places(std::string_view name, const ModelConfig& config) {
  const Experts& experts = config.experts;
  if (experts.count == 0) return {};
  constexpr std::string_view part = "mlp.", router = "gate.weight", own = "experts.";
  const std::size_t at = name.find(part);
  if (at == std::string_view::npos) return {};
  const std::string block = std::string(name.substr(0, at)) + "block_sparse_moe.";  // by its older name
  const std::string layer(name.substr(0, at));  // which has them beside its MLP (gemma4)
  const std::string mlp(name.substr(0, at + part.size()));
  name.remove_prefix(at + part.size());
  if (name == router) {
    return {{block + "gate.weight", 0, experts.count, experts.count},
            {block + "router.layer.weight", 0, experts.count, experts.count},
            {mlp + "router.weight", 0, experts.count, experts.count},
            {layer + "router.proj.weight", 0, experts.count, experts.count}};
  }
  if (name == "gate.bias") return {{mlp + "router.bias", 0, experts.count, experts.count}};
  if (!name.starts_with(own)) return {};
  name.remove_prefix(own.size());
  int expert = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), expert);
  if (error != std::errc() || expert < 0 || expert >= experts.count) return {};
  struct Kind {
    std::string_view name, older, together, of_block;
    int which, fused;  // of the matrices of an expert that are side by side in a tensor of all
  };
  constexpr Kind kinds[] = {{"gate_proj", ".w1.weight", "gate_up_proj", "input_linear.weight", 0, 2},
                            {"up_proj", ".w3.weight", "gate_up_proj", "input_linear.weight", 1, 2},
                            {"down_proj", ".w2.weight", "down_proj", "output_linear.weight", 0, 1}};
  const std::string_view rest(end, static_cast<std::size_t>(name.data() + name.size() - end));
  for (const Kind& kind : kinds) {
    const std::string own_name = "." + std::string(kind.name);
    const bool bias = rest == own_name + ".bias";
    if (!bias && rest != own_name + ".weight") continue;
    const int rows = kind.name == "down_proj" ? config.hidden_size : experts.inner;
    const auto slice = [&](std::string tensor, int which, int fused) {
      return FusedPart{std::move(tensor), (expert * fused + which) * rows, rows, experts.count * fused * rows,
                       experts.count};
    };
    if (bias) return {slice((mlp + "experts").append(own_name).append(".bias"), 0, 1)};
    const std::string together = (mlp + "experts.").append(kind.together);
    return {{(block + "experts." + std::to_string(expert)).append(kind.older), 0, rows, rows},
            slice(together, kind.which, kind.fused),
            slice(together + ".weight", kind.which, kind.fused),
            slice(std::string(block).append(kind.of_block), kind.which, kind.fused),
            slice((layer + "experts.").append(kind.together), kind.which, kind.fused),
            slice((mlp + "experts.").append(kind.name).append(".weight"), 0, 1)};
  }
  return {};
}

CheckpointTensor take_part(Checkpoint& checkpoint, const FusedPart& part, int columns) {
  if (columns == 0) {
    return rows_of(part.experts == 0 ? checkpoint.at(part.name, {part.fused_rows})
                                     : checkpoint.at(part.name, {part.experts, part.fused_rows / part.experts}),
                   part);
  }
  if (part.experts == 0) return rows_of(checkpoint.at(part.name, {part.fused_rows, columns}), part);
  return rows_of(checkpoint.at(part.name, {part.experts, part.fused_rows / part.experts, columns}), part);
}

CheckpointTensor rows_of(const CheckpointTensor& whole, const FusedPart& part) {
  const std::size_t row_bytes = whole.data.size() / static_cast<std::size_t>(part.fused_rows);
  CheckpointTensor tensor = whole;
  tensor.data = whole.data.subspan(static_cast<std::size_t>(part.first_row) * row_bytes,
                                   static_cast<std::size_t>(part.rows) * row_bytes);
  return tensor;
}

}  // namespace hayloft::runtime
