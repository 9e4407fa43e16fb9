#include <algorithm>
#include <cmath>

#include "runtime/decode/model.h"

// Does what one layer does to the residual stream, and what comes before the first and behind the last.
namespace hayloft::runtime {

// The residual stream of the newest `rows` positions gains the layer's attention; K and V of all T enter the cache.
void Model::attend(int layer, Cache& cache, Workspace& workspace, const Activations& act, int T, int rows,
                   AttentionPolicy& policy, bool under_norm) const {
  const std::int64_t H = config_.hidden_size;
  const std::int64_t position = cache.tokens(layer);
  const float* const norm = weights_.layers[static_cast<std::size_t>(layer)].attention_norm;
  const float* const input = under_norm && norm ? act.normed : normed(act.hidden, norm, act, T);
  if (config_.kind(layer) == LayerKind::recurrent) {
    advance(layer, cache, workspace, act, input, T, rows);
    return;
  }
  project_heads(layer, input, T, rows == T, act);
  enter(layer, cache, act, T, rows == T);
  const gpu::CacheView view = view_of(layer, cache);
  const LayerStep at{*backend_,     backend_->stream(),  layer, view,
                     cache.store(), config_.query_heads, T,     workspace.scratch};
  int queries = rows;  // of the newest positions
  if (rows < T && config_.kind(layer) == LayerKind::global) queries = std::max(rows, policy.queries_wanted(at));
  if (queries == 0) return;
  if (rows < T) {
    project_q(layer, input + (T - queries) * H, queries, act);
    turn_q(layer, act.q, queries, position + T - queries);
  }
  scale_queries(layer, act.q, queries, position + T - queries);
  mix(at, act.q, queries, rows, act.mixed, policy);
  if (T == 1 && config_.kind(layer) == LayerKind::global) fetch_ahead(layer, cache);
  if (rows == 0) return;
  project_gate(layer, input + (T - rows) * H, rows, act);
  add_attention_output(layer, act, act.mixed, act.hidden + (T - rows) * H, rows);
}

// The residual stream of the newest `rows` positions gains what a recurrent layer makes of all T.
void Model::advance(int layer, Cache& cache, Workspace& workspace, const Activations& act, const float* input, int T,
                    int rows) const {
  const gpu::DeltaLayer& delta = weights_.layers[static_cast<std::size_t>(layer)].delta.layer;
  project_delta(layer, input, T, act);
  if (cache.holds_pending()) keep_inputs(layer, workspace, act, T);
  backend_->gated_delta(delta, cache.advance(layer, T), act.q, act.k, act.v, act.output_gate, T, act.mixed,
                        backend_->stream());
  if (rows == 0) return;
  add_attention_output(layer, act, act.mixed + (T - rows) * delta.shape.values(),
                       act.hidden + std::int64_t{T - rows} * config_.hidden_size, rows);
}

void Model::project_delta(int layer, const float* input, int T, const Activations& act) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const gpu::MatrixProduct products[] = {{input, T, &w.delta.inputs, act.q},
                                         {input, T, &w.delta.step, act.k},
                                         {input, T, &w.delta.rate, act.v},
                                         {input, T, &w.output_gate, act.output_gate}};
  backend_->multiply_each(products, backend_->stream());
}

// The gates of what the newest `rows` positions attend to, where there are any.
void Model::project_gate(int layer, const float* input, int rows, const Activations& act) const {
  if (!config_.attention_gate) return;
  backend_->matmul(input, rows, weights_.layers[static_cast<std::size_t>(layer)].output_gate, nullptr, act.output_gate,
                   backend_->stream());
}

void Model::norm_heads(float* x, int tokens, int heads, int d, const float* weight) const {
  if (!weight) return;
  const bool whole = config_.qk_norm_whole;
  backend_->rms_norm(x, whole ? tokens : tokens * heads, whole ? heads * d : d, weight, config_.rms_norm_eps, x,
                     backend_->stream());
}

// K and V of T positions, and their queries with `and_q`.
void Model::project_heads(int layer, const float* input, int T, bool and_q, const Activations& act) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const LayerHeads heads = config_.heads(layer);
  const bool own_values = w.v.rows > 0;
  std::vector<gpu::MatrixProduct> products = {{input, T, &w.k, act.k, w.k_bias}};
  if (own_values) products.push_back({input, T, &w.v, act.v, w.v_bias});
  if (and_q) products.push_back({input, T, &w.q, act.q, w.q_bias});
  backend_->multiply_each(products, backend_->stream());
  if (!own_values) {
    const auto bytes = static_cast<std::uint64_t>(T * heads.width()) * sizeof(float);
    backend_->copy(act.v, act.k, bytes, backend_->stream());
  }
  if (!config_.qk_norm_whole) return;
  norm_heads(act.k, T, heads.kv, heads.dim, w.k_norm);
  norm_heads(act.v, T, heads.kv, heads.dim, w.v_norm);
  if (and_q) norm_heads(act.q, T, config_.query_heads, heads.dim, w.q_norm);
}

// K and V of T positions, under what norms single heads have and K turned, enter the cache behind those that it has;
// with `and_q` their queries become what keys are multiplied with, but for their scale.
void Model::enter(int layer, Cache& cache, const Activations& act, int T, bool and_q) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  gpu::NewHeads heads;
  if (and_q) heads.q = act.q;
  heads.query_heads = config_.query_heads;
  heads.k = act.k;
  heads.v = act.v;
  heads.T = T;
  if (!config_.qk_norm_whole) {
    heads.q_norm = w.q_norm;
    heads.k_norm = w.k_norm;
    heads.v_norm = w.v_norm;
  }
  heads.eps = config_.rms_norm_eps;
  if (config_.rope[static_cast<std::size_t>(layer)]) heads.rope = rope_of(layer);
  cache.enter(layer, heads);
}

void Model::project_q(int layer, const float* input, int T, const Activations& act) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  backend_->matmul(input, T, w.q, w.q_bias, act.q, backend_->stream());
  norm_heads(act.q, T, config_.query_heads, config_.heads(layer).dim, w.q_norm);
}

gpu::CacheView Model::view_of(int layer, const Cache& cache) const {
  gpu::CacheView view = cache.view(layer);
  view.sinks = weights_.layers[static_cast<std::size_t>(layer)].sinks;
  return view;
}

void Model::fetch_ahead(int behind, const Cache& cache) const {
  if (!backend_->keeps_reads()) return;
  for (int layer = behind + 1; layer < config_.layers; ++layer) {
    if (config_.kind(layer) != LayerKind::global) continue;
    return backend_->fetch_ahead(view_of(layer, cache), backend_->stream());
  }
}

// Turns queries of T positions from `position` on.
void Model::turn_q(int layer, float* q, int T, std::int64_t position) const {
  if (!config_.rope[static_cast<std::size_t>(layer)]) return;
  const int d = config_.heads(layer).dim;
  backend_->rope(q, T, config_.query_heads, d, position, rope_of(layer), backend_->stream());
}

// Attends for the newest `rows` positions, into out [rows][Hq d], by the queries of the newest `queries`. With
// `left`, for one row, attention to ranges of a global layer may be added to it instead.
void Model::mix(const LayerStep& at, const float* q, int queries, int rows, float* out, AttentionPolicy& policy,
                std::vector<gpu::AttendStep>* left) const {
  const std::int64_t window = config_.sliding_window[static_cast<std::size_t>(at.layer)];
  if (window > 0) {
    if (rows == 0) return;
    const float* const newest = q + (queries - rows) * at.query_elements();
    if (policy.each_as_alone()) {
      for (int row = 0; row < rows; ++row) {
        gpu::CacheView view = at.cache;
        view.tail.tokens -= rows - 1 - row;
        backend_->attend_causal(view, newest + row * at.query_elements(), 1, at.query_heads, window,
                                out + row * at.query_elements(), at.stream);
      }
      return;
    }
    backend_->attend_causal(at.cache, newest, rows, at.query_heads, window, out, at.stream);
  } else if (left == nullptr) {
    policy.attend(at, q, queries, rows, out);
  } else if (const auto what = policy.attend_or_leave(at, q, out)) {
    left->push_back({at.cache, q, *what, out});
  }
}

// The residual stream of `rows` positions gains `mixed`, what they have attended to.
void Model::add_attention_output(int layer, const Activations& act, float* mixed, float* hidden, int rows) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  if (config_.attention_gate && config_.kind(layer) != LayerKind::recurrent) {
    const std::int64_t width = std::int64_t{config_.query_heads} * config_.heads(layer).dim;
    backend_->sigmoid_mul(mixed, act.output_gate, rows * width, backend_->stream());
  }
  backend_->matmul(mixed, rows, w.o, w.o_bias, act.delta, backend_->stream());
  add_residual(layer, hidden, w.attended_norm, act, rows, {norm_before_mlp(layer)});
}

const float* Model::norm_before_mlp(int layer) const {
  return config_.experts.in(layer) ? nullptr : weights_.layers[static_cast<std::size_t>(layer)].mlp_norm;
}

const float* Model::norm_behind(int layer) const {
  return layer + 1 < config_.layers ? weights_.layers[static_cast<std::size_t>(layer) + 1].attention_norm
                                    : weights_.final_norm;
}

// The pieces of one row that a sequence of its own works on.
Model::Activations Model::row_of(int layer, const Activations& act, std::int64_t row) const {
  const bool recurrent = config_.kind(layer) == LayerKind::recurrent;
  const gpu::DeltaShape& delta = config_.delta;
  const LayerHeads heads = config_.heads(layer);
  const std::int64_t query = std::int64_t{config_.query_heads} * heads.dim;
  const std::int64_t kv = recurrent ? delta.value_heads : heads.width();
  const std::int64_t out = recurrent ? delta.values() : query;
  Activations own = act;
  own.k += row * kv;
  own.v += row * kv;
  own.q += row * (recurrent ? delta.channels() : query);
  own.mixed += row * out;
  own.output_gate += row * out;
  return own;
}

void Model::embed(const std::int32_t* tokens, int T, float* hidden) const {
  const gpu::Stream stream = backend_->stream();
  backend_->embed(weights_.embedding, tokens, T, hidden, stream);
  scale(hidden, static_cast<std::int64_t>(T) * config_.hidden_size, config_.embedding_scale);
}

void Model::scale(float* x, std::int64_t n, float factor) const {
  if (factor != 1) backend_->scale(x, n, factor, backend_->stream());
}

// x under the norm; x itself where there is none.
const float* Model::normed(const float* x, const float* norm, const Activations& act, int rows) const {
  if (!norm) return x;
  backend_->rms_norm(x, rows, config_.hidden_size, norm, config_.rms_norm_eps, act.normed, backend_->stream());
  return act.normed;
}

gpu::Rope Model::rope_of(int layer) const {
  const bool local = weights_.local_inverse_frequency && config_.sliding_window[static_cast<std::size_t>(layer)] > 0;
  const RopeTable& table = local ? config_.local_table : config_.global_table;
  return {local ? weights_.local_inverse_frequency : weights_.inverse_frequency,
          static_cast<int>(table.inverse_frequency.size()), table.magnitude};
}

// Attention multiplies products by 1/sqrt(d): whatever else an architecture wants goes into the queries of the T
// positions from `position` on.
void Model::scale_queries(int layer, float* q, int T, std::int64_t position) const {
  const int d = config_.heads(layer).dim;
  const std::int64_t width = std::int64_t{config_.query_heads} * d;
  if (config_.attention_scale > 0) {
    scale(q, T * width, config_.attention_scale * std::sqrt(static_cast<float>(d)));
  }
  if (config_.query_log_scale <= 0) return;
  const std::int64_t period = config_.query_scale_positions;
  for (std::int64_t at = position; at < position + T;) {  // runs of positions that share a factor
    const std::int64_t end = std::min(position + T, (at / period + 1) * period);
    const float factor = 1 + config_.query_log_scale * std::log(1 + static_cast<float>(at / period));
    scale(q + (at - position) * width, (end - at) * width, factor);
    at = end;
  }
}

// hidden += what is in act.delta, under its norm and scaled as the architecture has it.
void Model::add_residual(int layer, float* hidden, const float* norm, const Activations& act, int rows,
                         const Behind& behind) const {
  const gpu::Stream stream = backend_->stream();
  const std::int64_t n = static_cast<std::int64_t>(rows) * config_.hidden_size;
  if (norm) {
    backend_->rms_norm(act.delta, rows, config_.hidden_size, norm, config_.rms_norm_eps, act.delta, stream);
  }
  scale(act.delta, n, config_.residual_scale);
  gpu::AddAndNorm all{hidden, act.delta, rows, config_.hidden_size};
  if (behind.flag) all.flag = behind.flag->device.as<std::int32_t>();
  all.tag = layer;
  all.weight = behind.norm;
  all.eps = config_.rms_norm_eps;
  all.normed = act.normed;
  backend_->add_and_norm(all, stream);
}

// Logits of `rows` positions, whose states under the last norm are in act.normed.
void Model::output(Workspace& workspace, const Activations& act, int rows) const {
  const gpu::Stream stream = backend_->stream();
  const std::int64_t count = static_cast<std::int64_t>(rows) * config_.vocab_size;
  const std::uint64_t bytes = static_cast<std::uint64_t>(count) * sizeof(float);
  if (workspace.logits.bytes() < bytes) workspace.logits = backend_->allocate(bytes, stream);
  auto* const logits = workspace.logits.as<float>();
  backend_->matmul(act.normed, rows, weights_.output, nullptr, logits, stream);
  scale(logits, count, config_.logit_scale);
  if (config_.logit_cap > 0) backend_->soft_cap(logits, count, config_.logit_cap, stream);
}

// The states that the output sees, into act.normed.
void Model::output_norm(const Activations& act, const float* hidden, int rows) const {
  backend_->rms_norm(hidden, rows, config_.hidden_size, weights_.final_norm, config_.rms_norm_eps, act.normed,
                     backend_->stream());
}

void Model::flag_logits(const float* logits, int rows, const NanFlag& flag) const {
  flag_nonfinite(logits, static_cast<std::int64_t>(rows) * config_.vocab_size, config_.layers, flag);
}

void Model::flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, const NanFlag& flag) const {
  backend_->flag_nonfinite(x, n, tag, flag.device.as<std::int32_t>(), backend_->stream());
}

// Computes gate [n] = f(gate) * up.
void Model::activate(gpu::Backend& by, float* gate, const float* up, std::int64_t n) const {
  switch (config_.activation) {
    case Activation::silu:
      return by.silu_mul(gate, up, n, by.stream());
    case Activation::gelu_tanh:
      return by.gelu_mul(gate, up, n, by.stream());
    case Activation::clamped:
      return by.clamped_mul(gate, up, n, config_.activation_limit, by.stream());
  }
}

// Puts into act.delta what the layer's MLP makes of the input.
void Model::multiply_mlp(const LayerWeights& w, const float* input, int rows, const Activations& act) const {
  const gpu::MatrixProduct products[] = {{input, rows, &w.gate, act.gate, w.gate_bias},
                                         {input, rows, &w.up, act.up, w.up_bias}};
  backend_->multiply_each(products, backend_->stream());
  activate(*backend_, act.gate, act.up, std::int64_t{rows} * w.gate.rows);
  backend_->matmul(act.gate, rows, w.down, w.down_bias, act.delta, backend_->stream());
}

// The residual stream of `rows` positions, which act.normed has under the MLP's norm where that is
// norm_before_mlp(), gains the MLP's output.
std::vector<ExpertTokens> Model::mlp(int layer, const Activations& act, float* hidden, int rows,
                                     const Behind& behind) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const bool experts = config_.experts.in(layer), beside = experts && config_.experts.beside_inner > 0;
  const int n = config_.hidden_size;
  std::vector<ExpertTokens> chosen;
  if (experts) chosen = mix_experts(layer, act, hidden, rows);
  float* const mixed = act.mixture.outputs;  // of the experts, where an MLP is beside them
  if (beside) {
    backend_->rms_norm(act.delta, rows, n, w.experts.mixed_norm, config_.rms_norm_eps, mixed, backend_->stream());
  }
  if (beside) multiply_mlp(w, normed(hidden, w.mlp_norm, act, rows), rows, act);
  if (!experts) multiply_mlp(w, w.mlp_norm ? act.normed : hidden, rows, act);
  if (beside) {
    backend_->rms_norm(act.delta, rows, n, w.experts.beside_norm, config_.rms_norm_eps, act.delta, backend_->stream());
    backend_->add(act.delta, mixed, std::int64_t{rows} * n, backend_->stream());
  }
  if (w.scale == 1) {
    add_residual(layer, hidden, w.output_norm, act, rows, behind);
    return chosen;
  }
  add_residual(layer, hidden, w.output_norm, act, rows, {});
  scale(hidden, std::int64_t{rows} * n, w.scale);
  if (behind.flag) flag_nonfinite(hidden, std::int64_t{rows} * n, layer, *behind.flag);
  if (behind.norm) normed(hidden, behind.norm, act, rows);
  return chosen;
}

}  // namespace hayloft::runtime
