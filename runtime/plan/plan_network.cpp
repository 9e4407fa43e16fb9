#include "runtime/plan/plan_network.h"

#include <algorithm>
#include <bit>
#include <charconv>

#include "offload/error.h"
#include "offload/text/list.h"
#include "runtime/attention/over_ranks.h"
#include "runtime/cluster/candidates.h"
#include "runtime/cluster/merge.h"

namespace hayloft::runtime::plan {

Network parse_network(const std::string& text) {
  std::error_code none;
  if (std::filesystem::exists(text, none)) return read_network(text);
  const auto items = split_list(text, ',');
  double numbers[2] = {};
  bool good = items.size() == 2;
  for (std::size_t i = 0; good && i < 2; ++i) {
    const char* const end = items[i].data() + items[i].size();
    const auto [stop, error] = std::from_chars(items[i].data(), end, numbers[i]);
    good = error == std::errc() && stop == end && numbers[i] < 1e6 && (i == 0 ? numbers[i] > 0 : numbers[i] >= 0);
  }
  if (!good)
    fail("--network {}: must be GBIT/S,MICROSECONDS, as in 10,30, or a file that mpirun hayloft link --json wrote",
         text);
  return {numbers[0], numbers[1]};
}

int network_rounds(int ranks) {
  return std::bit_width(static_cast<unsigned>(ranks - 1));
}

NetworkStep network_step(const ModelConfig& config, const Method& method, std::int64_t stored, std::int64_t tokens) {
  const MethodOptions& options = method.options();
  require_over_ranks(options);
  NetworkStep step;
  const bool selects = options.name == "topk" || options.name == "sparq";
  const bool per_query_head = selects_per(options) == index::SelectPer::query_head;
  const int lists = per_query_head ? config.query_heads : config.kv_heads;
  const int heads = config.query_heads / lists;
  const bool by_softmax = heads > 1 && options.rule == index::GroupRule::softmax;
  const std::uint64_t sums = 4 * sizeof(float) * static_cast<std::uint64_t>(config.query_heads);
  for (int layer = 0; layer < config.global_layers(); ++layer) {
    step.gathered += 1;
    step.bytes += cluster::AttentionParts::bytes(config.query_heads, config.head_dim);
    if (!selects) continue;
    const std::int64_t window = method.window(tokens, layer);
    const std::int64_t limit = std::min(stored, tokens - window);
    const auto k = std::min(std::max<std::int64_t>(0, options.k.at(layer).of(tokens) - window), limit);
    if (k == 0 && options.name == "topk") continue;
    step.gathered += by_softmax ? 2 : 1;
    step.bytes += cluster::Candidates::bytes(lists, heads, static_cast<int>(k));
    if (by_softmax || options.name == "sparq") step.bytes += sums;
  }
  step.messages = step.gathered + 1;
  return step;
}

double network_ms(const NetworkStep& step, const Network& network, int ranks) {
  if (ranks < 2) return 0;
  const double rounds = network_rounds(ranks);
  const double bits = 8.0 * static_cast<double>(step.bytes) * (ranks - 1);
  return static_cast<double>(step.messages) * rounds * network.latency_us / 1e3 +
         bits / (network.gigabits_per_second * 1e6);
}

}  // namespace hayloft::runtime::plan
