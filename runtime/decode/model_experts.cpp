// The feed-forward part of layers that are mixtures of experts.
#include <cmath>

#include "runtime/decode/model.h"
#include "runtime/decode/router.h"

namespace hayloft::runtime {
namespace {

// Chunks in which an expert has so many tokens on average are multiplied sooner where its weights are brought to the
// device than by the processor: a weight of 4.5 bits crosses a link of 20 GB/s in the time of 4 tokens at 300 GFLOP/s.
constexpr int kTokensWorthTheLink = 8;

// Says which row goes through which expert, in the order of the experts, and what its output counts for.
struct Ways {
  explicit Ways(std::span<const ExpertTokens> chosen) {
    for (const ExpertTokens& each : chosen) {
      tokens.insert(tokens.end(), each.tokens.begin(), each.tokens.end());
      weights.insert(weights.end(), each.weights.begin(), each.weights.end());
    }
  }
  std::vector<std::int32_t> tokens;
  std::vector<float> weights;
};

std::vector<const Expert*> experts_of(const LayerWeights& layer, std::span<const ExpertTokens> chosen) {
  std::vector<const Expert*> experts;
  for (const ExpertTokens& each : chosen) experts.push_back(&layer.experts.each[static_cast<std::size_t>(each.expert)]);
  return experts;
}

}  // namespace

// Multiplies some of the chosen experts, whose tokens are ways from `first` on, with their inputs, and puts their
// outputs where those of these ways belong; with the last of them also the expert that all tokens share, whose outputs
// follow.
void Model::multiply_experts(gpu::Backend& by, const Mixture& mixture, const ToMix& what,
                             std::span<const ExpertTokens> chosen, std::span<const Expert* const> experts,
                             std::int64_t first, bool shared) const {
  const std::int64_t hidden = config_.hidden_size, inner = config_.experts.inner;
  const float* const inputs = what.rows > 1 ? mixture.gathered : what.input;
  float* const gate = mixture.gate + first * inner;
  float* const up = mixture.up + first * inner;
  std::vector<gpu::MatrixProduct> into, out;
  std::int64_t ways = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Expert& expert = *experts[i];
    const int n = static_cast<int>(chosen[i].tokens.size());
    const float* const x = what.rows > 1 ? inputs + (first + ways) * hidden : inputs;
    into.push_back({x, n, &expert.gate, gate + ways * inner, expert.gate_bias});
    into.push_back({x, n, &expert.up, up + ways * inner, expert.up_bias});
    out.push_back({gate + ways * inner, n, &expert.down, mixture.outputs + (first + ways) * hidden, expert.down_bias});
    ways += n;
  }
  const LayerWeights& w = what.weights;
  std::int64_t activated = ways * inner;
  if (shared) {
    into.push_back({what.input, what.rows, &w.gate, gate + activated});
    into.push_back({what.input, what.rows, &w.up, up + activated});
    out.push_back({gate + activated, what.rows, &w.down, mixture.outputs + (first + ways) * hidden});
    activated += std::int64_t{what.rows} * config_.experts.shared_inner;
  }
  by.multiply_each(into, by.stream());
  activate(by, gate, up, activated);
  by.multiply_each(out, by.stream());
}

// Puts into act.delta what experts near the processor make of the input, which crosses the link for them, as the result
// does.
void Model::mix_near(const ToMix& what, const Activations& act) const {
  const Mixture& mixture = act.near;
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(what.rows) * static_cast<std::uint64_t>(config_.hidden_size) * sizeof(float);
  const gpu::Stream stream = near_->stream();
  backend_->to_host(mixture.input, what.input, bytes, backend_->stream());
  const ToMix near{what.weights, mixture.input, what.rows, what.chosen};
  const Ways ways(what.chosen);
  if (what.rows > 1) near_->gather_rows(mixture.input, ways.tokens, config_.hidden_size, mixture.gathered, stream);
  multiply_experts(*near_, mixture, near, what.chosen, experts_of(what.weights, what.chosen), 0, false);
  near_->sum_rows(mixture.outputs, ways.tokens, ways.weights, what.rows, config_.hidden_size, mixture.delta, stream);
  backend_->to_device(act.delta, mixture.delta, bytes, backend_->stream());
}

// Puts into act.delta what the experts make of the residual stream [rows][hidden], under the norms that there are. The
// router's choice comes to the host. Tokens of an expert are multiplied together, and one alone straight from the
// input; a token's experts are added in ascending order, the one that all tokens go through last. Returns the choice.
std::vector<ExpertTokens> Model::mix_experts(int layer, const Activations& act, const float* hidden, int rows) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const Experts& experts = config_.experts;
  const Mixture& mixture = act.mixture;
  const gpu::Stream stream = backend_->stream();
  const bool shared = experts.shared_inner > 0;
  const auto gates = static_cast<std::size_t>(rows) * static_cast<std::size_t>(aligned_width(experts.count));
  const bool own_norms = w.experts.router_norm != nullptr;
  const float* input = normed(hidden, own_norms ? w.experts.router_norm : w.mlp_norm, act, rows);
  backend_->matmul(input, rows, w.experts.router, w.experts.router_bias, mixture.routed, stream);
  if (own_norms) input = normed(hidden, w.experts.norm, act, rows);
  if (shared) backend_->matmul(input, rows, w.experts.shared_gate, nullptr, mixture.routed + gates, stream);
  std::vector<float> routed(gates + (shared ? static_cast<std::size_t>(rows) : 0));
  backend_->to_host(routed.data(), mixture.routed, routed.size() * sizeof(float), stream);

  std::vector<ExpertTokens> chosen = route(routed.data(), rows, experts, w.experts.scales);
  const ToMix what{w, input, rows, chosen};
  const bool over_link =
      slots_ && (!near_ || (rows > tokens_as_alone() && rows * experts.used >= kTokensWorthTheLink * experts.count));
  Ways ways({});
  if (near_ && !over_link) {
    mix_near(what, act);
    if (!shared) return chosen;
    multiply_experts(*backend_, mixture, what, {}, {}, 0, true);
  } else {
    ways = Ways(chosen);
    if (rows > 1) backend_->gather_rows(input, ways.tokens, config_.hidden_size, mixture.gathered, stream);
    const auto all = static_cast<std::int64_t>(ways.tokens.size());
    std::int64_t first = 0;
    const auto multiply = [&](std::span<const ExpertTokens> some, std::span<const Expert* const> matrices) {
      std::int64_t n = 0;
      for (const ExpertTokens& each : some) n += static_cast<std::int64_t>(each.tokens.size());
      multiply_experts(*backend_, mixture, what, some, matrices, first, shared && first + n == all);
      first += n;
    };
    over_link ? slots_->each_group(layer, chosen, multiply) : multiply(chosen, experts_of(w, chosen));
  }
  if (shared) {
    for (std::int32_t t = 0; t < rows; ++t) {
      ways.tokens.push_back(t);
      const float logit = routed[gates + static_cast<std::size_t>(t)];
      // A share of one or nothing would hide an infinity.
      ways.weights.push_back(std::isfinite(logit) ? 1 / (1 + std::exp(-logit)) : NAN);
    }
  }
  const bool beside = near_ && !over_link;  // act.delta has what the others made
  float* const sum = beside ? mixture.gathered : mixture.delta;
  backend_->sum_rows(mixture.outputs, ways.tokens, ways.weights, rows, config_.hidden_size, sum, stream);
  if (beside) backend_->add(act.delta, sum, std::int64_t{rows} * config_.hidden_size, stream);
  return chosen;
}

}  // namespace hayloft::runtime
