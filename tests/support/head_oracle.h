#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/checkpoint/config.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::test {

// The head of a folder of type qwen3_5_text or qwen3_5_moe_text that predicts further tokens, in double, from its
// equations: every position anew at each call.
class HeadOracle {
 public:
  using Vector = std::vector<double>;

  explicit HeadOracle(const std::filesystem::path& folder)
      : config_(runtime::read_config(folder)), file_(folder / "model.safetensors") {}

  struct Entry {
    std::int32_t token = 0;  // that of position i + 1
    Vector state;            // behind position i, under the model's final norm
  };
  // Holds what the head gives behind the last of the entries, which are at positions 0, 1, ...
  struct Said {
    Vector state;
    Vector logits;
  };
  Said behind(const std::vector<Entry>& entries) const {
    const int d = config_.head_dim, group = config_.group_size();
    std::vector<Vector> keys, values;
    Vector stream, queries, gates;
    for (std::size_t position = 0; position < entries.size(); ++position) {
      stream = joined(entries[position]);
      const Vector input = normed(stream, layer + "input_layernorm.weight");
      keys.push_back(times(layer + "self_attn.k_proj.weight", input));
      values.push_back(times(layer + "self_attn.v_proj.weight", input));
      const Vector both = times(layer + "self_attn.q_proj.weight", input);  // of each head queries, then gates
      queries.clear(), gates.clear();
      for (int head = 0; head < config_.query_heads; ++head) {
        const auto from = both.begin() + static_cast<std::ptrdiff_t>(head) * 2 * d;
        queries.insert(queries.end(), from, from + d);
        gates.insert(gates.end(), from + d, from + 2 * d);
      }
      norm_and_rotate(keys.back(), "self_attn.k_norm.weight", position);
      norm_and_rotate(queries, "self_attn.q_norm.weight", position);
    }
    Vector mixed(queries.size());
    for (int head = 0; head < config_.query_heads; ++head) {
      const std::size_t own = static_cast<std::size_t>(head * d), theirs = static_cast<std::size_t>(head / group * d);
      Vector weights;
      for (const Vector& key : keys) {
        double sum = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(d); ++i) sum += queries[own + i] * key[theirs + i];
        weights.push_back(std::exp(sum / std::sqrt(static_cast<double>(d))));
      }
      const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (std::size_t at = 0; at < values.size(); ++at) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(d); ++i) {
          mixed[own + i] += weights[at] / all * values[at][theirs + i];
        }
      }
    }
    for (std::size_t i = 0; i < mixed.size(); ++i) mixed[i] *= sigmoid(gates[i]);
    add(stream, times(layer + "self_attn.o_proj.weight", mixed));
    add(stream, feed_forward(normed(stream, layer + "post_attention_layernorm.weight")));
    Said said;
    said.state = normed(stream, "mtp.norm.weight");
    said.logits = times("model.embed_tokens.weight", said.state);
    return said;
  }

 private:
  const std::string layer = "mtp.layers.0.";

  static double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
  static void add(Vector& to, const Vector& what, double weight = 1) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += weight * what[i];
  }

  Vector times(const std::string& name, const Vector& x) const {
    const std::vector<float> matrix = runtime::to_f32(file_.at(name), name);
    Vector y(matrix.size() / x.size());
    for (std::size_t row = 0; row < y.size(); ++row) {
      for (std::size_t i = 0; i < x.size(); ++i) y[row] += static_cast<double>(matrix[row * x.size() + i]) * x[i];
    }
    return y;
  }

  Vector normed(const Vector& x, const std::string& name) const {
    const std::vector<float> weights = runtime::to_f32(file_.at(name), name);
    double square = 0;
    for (const double each : x) square += each * each;
    const double factor = 1 / std::sqrt(square / static_cast<double>(x.size()) + config_.rms_norm_eps);
    Vector y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * (1 + static_cast<double>(weights[i]));
    return y;
  }

  Vector joined(const Entry& entry) const {
    const std::string table = "model.embed_tokens.weight";
    const auto hidden = static_cast<std::int64_t>(config_.hidden_size);
    const std::vector<float> row = runtime::to_f32(file_.at(table), entry.token * hidden, hidden, table);
    Vector both = normed(Vector(row.begin(), row.end()), "mtp.pre_fc_norm_embedding.weight");
    const Vector state = normed(entry.state, "mtp.pre_fc_norm_hidden.weight");
    both.insert(both.end(), state.begin(), state.end());
    return times("mtp.fc.weight", both);
  }

  void norm_and_rotate(Vector& heads, const std::string& norm, std::size_t position) const {
    const auto d = static_cast<std::size_t>(config_.head_dim);
    const std::vector<float>& frequencies = config_.global_table.inverse_frequency;
    for (std::size_t from = 0; from < heads.size(); from += d) {
      const auto at = heads.begin() + static_cast<std::ptrdiff_t>(from);
      Vector head = normed(Vector(at, at + static_cast<std::ptrdiff_t>(d)), layer + norm);
      const std::size_t pairs = frequencies.size();
      for (std::size_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(position) * static_cast<double>(frequencies[i]);
        const double x = head[i], y = head[i + pairs];
        head[i] = x * std::cos(angle) - y * std::sin(angle);
        head[i + pairs] = y * std::cos(angle) + x * std::sin(angle);
      }
      std::copy(head.begin(), head.end(), at);
    }
  }

  Vector mlp(const std::string& prefix, const Vector& x) const {
    Vector gate = times(prefix + "gate_proj.weight", x);
    const Vector up = times(prefix + "up_proj.weight", x);
    for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= sigmoid(gate[i]) * up[i];
    return times(prefix + "down_proj.weight", gate);
  }

  Vector feed_forward(const Vector& x) const {
    const std::string prefix = layer + "mlp.";
    if (config_.experts.count == 0) return mlp(prefix, x);
    const Vector logits = times(prefix + "gate.weight", x);
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    order.resize(static_cast<std::size_t>(config_.experts.used));
    double all = 0;
    for (const std::size_t expert : order) all += std::exp(logits[expert]);
    Vector sum(x.size());
    for (const std::size_t expert : order) {
      add(sum, mlp(prefix + "experts." + std::to_string(expert) + ".", x), std::exp(logits[expert]) / all);
    }
    add(sum, mlp(prefix + "shared_expert.", x), sigmoid(times(prefix + "shared_expert_gate.weight", x).front()));
    return sum;
  }

  runtime::ModelConfig config_;
  runtime::SafetensorsFile file_;
};

}  // namespace hayloft::test
