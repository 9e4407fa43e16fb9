// The feed-forward part of layers that are mixtures of experts.
#include <cmath>

#include "runtime/decode/model.h"
#include "runtime/decode/router.h"

namespace hayloft::runtime {

// Puts into act.delta what the experts make of input [rows][hidden]. The router's choice comes to the host, and what
// the processor beside the device computes crosses the link twice, as it goes in and as it comes out. Tokens of an
// expert are multiplied together, and one alone straight from the input; a token's experts are added in ascending
// order, the one that all tokens go through last.
void Model::mix_experts(int layer, const Activations& act, const float* input, int rows) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const Experts& experts = config_.experts;
  const Mixture& mixture = act.mixture;
  gpu::Backend& by = near_ ? *near_ : *backend_;
  const gpu::Stream stream = by.stream();
  const std::uint64_t moved =
      static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(config_.hidden_size) * sizeof(float);
  if (near_) {
    backend_->to_host(mixture.input, input, moved, backend_->stream());
    input = mixture.input;
  }
  const bool shared = experts.shared_inner > 0;
  const auto gates = static_cast<std::size_t>(rows) * static_cast<std::size_t>(aligned_width(experts.count));
  by.matmul(input, rows, w.experts.router, w.experts.router_bias, mixture.routed, stream);
  if (shared) by.matmul(input, rows, w.experts.shared_gate, nullptr, mixture.routed + gates, stream);
  std::vector<float> routed(gates + (shared ? static_cast<std::size_t>(rows) : 0));
  by.to_host(routed.data(), mixture.routed, routed.size() * sizeof(float), stream);

  const std::vector<ExpertTokens> chosen = route(routed.data(), rows, experts);
  std::vector<std::int32_t> tokens;
  std::vector<float> weights;
  for (const ExpertTokens& each : chosen) {
    tokens.insert(tokens.end(), each.tokens.begin(), each.tokens.end());
    weights.insert(weights.end(), each.weights.begin(), each.weights.end());
  }
  if (rows > 1) by.gather_rows(input, tokens, config_.hidden_size, mixture.gathered, stream);

  // One product for each expert with `x` [way][cols] of the ways of tokens through experts.
  std::vector<gpu::MatrixProduct> products;
  const auto multiply = [&](const std::vector<gpu::Matrix>& matrices, const std::vector<const float*>& biases,
                            const float* x, float* y) {
    for (const ExpertTokens& each : chosen) {
      const auto expert = static_cast<std::size_t>(each.expert);
      const gpu::Matrix& matrix = matrices[expert];
      const int n = static_cast<int>(each.tokens.size());
      products.push_back({x, n, &matrix, y, biases.empty() ? nullptr : biases[expert]});
      if (x != input) x += std::int64_t{n} * matrix.cols;
      y += std::int64_t{n} * matrix.rows;
    }
  };
  const auto ways = static_cast<std::int64_t>(tokens.size());
  const std::int64_t routed_inner = ways * experts.inner, routed_outputs = ways * config_.hidden_size;
  multiply(w.experts.gate, w.experts.gate_bias, rows > 1 ? mixture.gathered : input, mixture.gate);
  multiply(w.experts.up, w.experts.up_bias, rows > 1 ? mixture.gathered : input, mixture.up);
  if (shared) {
    products.push_back({input, rows, &w.gate, mixture.gate + routed_inner});
    products.push_back({input, rows, &w.up, mixture.up + routed_inner});
  }
  by.multiply_each(products, stream);
  activate(by, mixture.gate, mixture.up, routed_inner + std::int64_t{rows} * experts.shared_inner);
  products.clear();
  multiply(w.experts.down, w.experts.down_bias, mixture.gate, mixture.outputs);
  if (shared) {
    products.push_back({mixture.gate + routed_inner, rows, &w.down, mixture.outputs + routed_outputs});
    for (std::int32_t t = 0; t < rows; ++t) {
      tokens.push_back(t);
      weights.push_back(1 / (1 + std::exp(-routed[gates + static_cast<std::size_t>(t)])));
    }
  }
  by.multiply_each(products, stream);
  by.sum_rows(mixture.outputs, tokens, weights, rows, config_.hidden_size, mixture.delta, stream);
  if (near_) backend_->to_device(act.delta, mixture.delta, moved, backend_->stream());
}

}  // namespace hayloft::runtime
