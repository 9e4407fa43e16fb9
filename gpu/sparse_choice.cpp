#include "gpu/sparse_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hayloft::gpu {
namespace {

// Above this share of the blocks all are read: it costs as much, and loses nothing.
constexpr double kDenseShare = 0.75;

// Returns tokens at the same place of equal parts of the block, which has eight places.
std::vector<int> spread_tokens(const QueryBlock& queries, int place) {
  std::vector<int> tokens;
  const int count = std::min(sparse_sampled_tokens, queries.tokens);
  for (int i = 0; i < count; ++i) tokens.push_back(queries.begin + (8 * i + place) * queries.tokens / (8 * count));
  return tokens;
}

void drop_what_is_not_finite(KeyMass& mass) {
  for (double& each : mass.blocks) each = std::isfinite(each) ? each : 0;  // such a query fails its token later
}

}  // namespace

int sparse_block_tokens(int group) {
  return std::max(1, 512 / group);
}

std::vector<QueryBlock> query_blocks(int head, int T, int group) {
  const int most = sparse_block_tokens(group);
  std::vector<QueryBlock> blocks;
  for (int t = 0; t < T; t += most) blocks.push_back({head, t, std::min(most, T - t)});
  return blocks;
}

std::vector<int> sampled_tokens(const QueryBlock& queries) {
  return spread_tokens(queries, 4);
}

std::vector<int> stopping_tokens(const QueryBlock& queries, const SparseCausal& how) {
  return how.fidelity > 0 ? spread_tokens(queries, 2) : std::vector<int>();
}

std::vector<int> measured_tokens(const QueryBlock& queries) {
  return spread_tokens(queries, 0);
}

bool is_measured(std::int64_t first, const QueryBlock& queries) {
  return ((first + queries.begin) / std::max(1, queries.tokens) + queries.head) % sparse_measured_every == 0;
}

ChosenKeys choose_keys(KeyMass sampled, KeyMass stopping, const SparseCausal& how) {
  drop_what_is_not_finite(sampled);
  drop_what_is_not_finite(stopping);
  const std::vector<double>& mass = sampled.blocks;
  const std::size_t blocks = mass.size();
  const auto lighter = [&](std::int32_t a, std::int32_t b) {
    const double x = mass[static_cast<std::size_t>(a)], y = mass[static_cast<std::size_t>(b)];
    return x != y ? x < y : a > b;
  };
  // The first block holds the sinks, on which attention rests that has nowhere else to go. Of the others a heap gives
  // the heaviest first, so that those that are left need no order.
  std::vector<std::int32_t> heap(blocks - 1);
  std::iota(heap.begin(), heap.end(), 1);
  std::make_heap(heap.begin(), heap.end(), lighter);

  const KeyMass& held = how.fidelity > 0 ? stopping : sampled;
  const double wanted = (how.fidelity > 0 ? how.fidelity : how.mass) * held.rows;
  double caught = held.own + held.blocks[0];
  std::vector<std::int32_t> taken = {0};
  const auto enough = [&] {
    if (how.density > 0) return static_cast<double>(taken.size()) >= how.density * static_cast<double>(blocks);
    return caught >= wanted;
  };
  while (!heap.empty() && !enough()) {
    std::pop_heap(heap.begin(), heap.end(), lighter);
    caught += held.blocks[static_cast<std::size_t>(heap.back())];
    taken.push_back(heap.back());
    heap.pop_back();
  }
  if (static_cast<double>(taken.size()) > kDenseShare * static_cast<double>(blocks)) return std::nullopt;
  std::sort(taken.begin(), taken.end());
  return taken;
}

void count_read(std::int64_t first, const QueryBlock& queries, int group, const SparseCausal& how,
                const ChosenKeys& chosen, SparseRead& read) {
  const auto head = static_cast<std::size_t>(queries.head);
  read.choices.resize(std::max(read.choices.size(), head + 1));
  if (is_chosen_for(first, queries, how)) {
    ++read.choices[head].made;
    if (!chosen) ++read.choices[head].whole;
  }
  const std::int64_t before = first + queries.begin;
  const std::int64_t left = chosen ? key_blocks_before(first, queries) - static_cast<std::int64_t>(chosen->size()) : 0;
  const auto tokens = static_cast<std::uint64_t>(queries.tokens);
  const std::uint64_t pairs = tokens * (tokens + 1) / 2 + static_cast<std::uint64_t>(before) * tokens;  // of a head
  read.visible += static_cast<std::uint64_t>(group) * pairs;
  read.attended +=
      static_cast<std::uint64_t>(group) * (pairs - static_cast<std::uint64_t>(left) * sparse_key_block * tokens);
}

void count_caught(double share, SparseRead::Head& head) {
  ++head.rows;
  head.caught += static_cast<std::uint64_t>(share > 0 ? std::min(share, 1.0) / SparseRead::unit : 0);
}

}  // namespace hayloft::gpu
