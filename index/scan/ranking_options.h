#pragma once

#include <cstdint>
#include <optional>

// The ranking of positions, as far as a user can choose it. The options of attention methods, the selection of a
// backend and the search of columns embed the same struct.
namespace hayloft::index {

// The rule by which one KV head ranks positions for its g query heads (SparQ, arXiv 2312.04985): appendix B sums the
// softmaxes over the group, the authors' experiment code sums the logits. For g = 1 they agree.
enum class GroupRule : std::uint8_t { softmax, logits };

// One selection per KV head (SparQ) or per query head (top-k attention, arXiv 2502.06766).
enum class SelectPer : std::uint8_t { kv_head, query_head };

// The divisor of the approximate logits of SparQ (its figure 7b): tau = sqrt(d * |q[i1]|_1 / |q|_1), the share of
// q that the chosen components cover; sqrt(d), as if they were all; sqrt(r), as if they were any.
enum class Temperature : std::uint8_t { coverage, head_dim, rank };

// The measure of how much a component matters to a KV head: |q| summed over the group, in the order of the query heads,
// in f32; or that times the spread of K in the component (LayerView::spread).
enum class ComponentOrder : std::uint8_t { q, qk };

// As many components as a head may need of which `bits` planes are read in all.
constexpr int plane_rank(int head_dim, int bits) {
  return bits < head_dim ? bits : head_dim;
}

// Rank, bits, order and temperature are SparQ's step 1, from which a search gets its components and weights; rule and
// per are what a search ranks by.
struct RankingOptions {
  int rank = 0;  // r, columns of K that are read; of no account where there are bits
  int bits = 0;  // planes read per KV head, all components together; 0: whole components
  ComponentOrder order = ComponentOrder::q;
  Temperature temperature = Temperature::coverage;
  GroupRule rule = GroupRule::softmax;
  std::optional<SelectPer> per = {};  // none: per KV head, unless the method has it otherwise

  bool per_query_head() const { return per == SelectPer::query_head; }
  int lists(int kv_heads, int query_heads) const { return per_query_head() ? query_heads : kv_heads; }
  // Components that are read at most.
  int components(int head_dim) const { return bits > 0 ? plane_rank(head_dim, bits) : rank; }
  // True where it needs the spread of K, which only columns in planes have.
  bool needs_planes() const { return bits > 0 || order == ComponentOrder::qk; }

  friend bool operator==(const RankingOptions&, const RankingOptions&) = default;
};

}  // namespace hayloft::index
