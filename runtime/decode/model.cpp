#include "runtime/decode/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "offload/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/decode/prefill/hidden_states.h"

namespace hayloft::runtime {
namespace {

// Floats per token of the pieces of Activations, in their order.
std::array<std::int64_t, 9> activation_widths(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t query = static_cast<std::int64_t>(config.query_heads) * config.head_dim;
  const std::int64_t kv = static_cast<std::int64_t>(config.kv_heads) * config.head_dim;
  return {hidden, hidden, query, kv, kv, query, inner, inner, hidden};
}

constexpr std::int32_t no_layer = std::numeric_limits<std::int32_t>::max();  // has a NaN or an infinity

std::uint64_t activation_bytes(const ModelConfig& config, int T) {
  std::int64_t floats = 0;
  for (const std::int64_t width : activation_widths(config)) floats += width;
  return static_cast<std::uint64_t>(floats) * static_cast<std::uint64_t>(T) * sizeof(float);
}

ModelConfig with_rope(ModelConfig config, const RopeOverrides& rope) {
  if (rope.any()) set_rope(config, rope);
  return config;
}

// A step that fails leaves nothing behind in the cache.
struct Uncommitted {
  Cache& cache;
  ~Uncommitted() { cache.abandon(); }
};

}  // namespace

std::uint64_t workspace_bytes(const ModelConfig& config, int T) {
  return activation_bytes(config, T) + static_cast<std::uint64_t>(config.vocab_size) * sizeof(float);
}

gpu::ScratchShape scratch_shape(const ModelConfig& config, int T) {
  return {T, config.query_heads, config.head_dim, std::max(config.hidden_size, config.intermediate_size)};
}

// Pieces of the workspace, all f32; see the shapes.
struct Model::Activations {
  float* hidden;  // [T][hidden]
  float* normed;  // [T][hidden]
  float* q;       // [T][Hq d]
  float* k;       // [T][Hkv d]
  float* v;       // [T][Hkv d]
  float* mixed;   // [T][Hq d], what attention returns
  float* gate;    // [T][intermediate]
  float* up;      // [T][intermediate]
  float* delta;   // [T][hidden], added to the residual stream
};

Model::Model(Checkpoint& checkpoint, gpu::Backend& backend, WeightForm form, const RopeOverrides& rope)
    : config_(with_rope(checkpoint.config(), rope)),
      backend_(&backend),
      weights_(load_weights(checkpoint, config_, backend, form)) {}

Model::Model(const std::filesystem::path& path, gpu::Backend& backend, WeightForm form, const RopeOverrides& rope)
    : Model(*Checkpoint::open(path), backend, form, rope) {}

void Model::expect_positions(std::int64_t positions) {
  const std::vector<float> before = config_.global_table.inverse_frequency;
  set_rope(config_, {}, positions);
  const std::vector<float>& now = config_.global_table.inverse_frequency;
  if (now == before) return;
  backend_->to_device(weights_.inverse_frequency, now.data(), now.size() * sizeof(float), backend_->stream());
  backend_->synchronize(backend_->stream());
}

Model::Activations Model::prepare(Workspace& workspace, int T) const {
  const auto widths = activation_widths(config_);
  if (T > workspace.capacity) {
    workspace.memory = {};
    workspace.memory = backend_->allocate(activation_bytes(config_, T), backend_->stream());
    workspace.capacity = T;
  }
  float* pieces[std::tuple_size_v<decltype(widths)>];
  float* next = workspace.memory.as<float>();
  for (std::size_t i = 0; i < std::size(widths); ++i) {
    pieces[i] = next;
    next += widths[i] * workspace.capacity;
  }
  return {pieces[0], pieces[1], pieces[2], pieces[3], pieces[4], pieces[5], pieces[6], pieces[7], pieces[8]};
}

void Model::forward(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, Want want,
                    AttentionPolicy& attention, const ReadLogits& read) const {
  if (tokens.empty()) return;
  check_ids(tokens);
  const int T = static_cast<int>(tokens.size());
  const std::int64_t H = config_.hidden_size;
  const gpu::Stream stream = backend_->stream();
  const Activations act = prepare(workspace, T);
  clear_flag(workspace.flag);
  const Uncommitted uncommitted{cache};

  embed(tokens.data(), T, act.hidden);
  int rows = T;  // how many of the newest positions are still needed
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (layer + 1 == config_.layers && want != Want::all) rows = want == Want::none ? 0 : 1;
    attend(layer, cache, workspace, act, T, rows, attention);
    if (rows > 0) mlp(layer, act, act.hidden + (T - rows) * H, rows);
    backend_->flag_nonfinite(act.hidden + (T - rows) * H, rows * H, layer, workspace.flag.device.as<std::int32_t>(),
                             stream);
  }
  if (rows > 0) {
    output(workspace, workspace.flag, act, act.hidden + (T - rows) * H, rows);
  }
  bring_flag(workspace.flag);  // first, so that who reads the logits waits for both
  if (rows > 0 && read) {
    read(workspace.logits.as<float>());
  } else {
    backend_->synchronize(stream);
  }
  require_finite(workspace.flag, cache.tokens() + T - 1);
  cache.commit();
}

void Model::forward_together(std::span<ModelStep> steps, Workspace& workspace) const {
  const std::int64_t H = config_.hidden_size;
  const gpu::Stream stream = backend_->stream();
  Activations act = prepare(workspace, 1);
  const std::uint64_t bytes = steps.size() * static_cast<std::uint64_t>(H) * sizeof(float);
  if (workspace.hidden.bytes() < bytes) workspace.hidden = backend_->allocate(bytes, stream);
  if (workspace.flags.size() < steps.size()) workspace.flags.resize(steps.size());
  // Of every sequence that nothing has gone wrong with yet.
  const auto each = [&](const auto& part) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      ModelStep& step = steps[i];
      if (step.failure) continue;
      act.hidden = workspace.hidden.as<float>() + static_cast<std::int64_t>(i) * H;
      try {
        part(step, workspace.flags[i]);
      } catch (...) {
        step.failure = std::current_exception();
        step.cache->abandon();
      }
    }
  };
  each([&](const ModelStep& step, NanFlag& flag) {
    check_ids({&step.token, 1});
    clear_flag(flag);
    embed(&step.token, 1, act.hidden);
  });
  for (int layer = 0; layer < config_.layers; ++layer) {
    each([&](const ModelStep& step, NanFlag& flag) {
      attend(layer, *step.cache, workspace, act, 1, 1, *step.attention);
      mlp(layer, act, act.hidden, 1);
      backend_->flag_nonfinite(act.hidden, H, layer, flag.device.as<std::int32_t>(), stream);
    });
  }
  each([&](const ModelStep& step, NanFlag& flag) {
    output(workspace, flag, act, act.hidden, 1);
    bring_flag(flag);  // first, so that who reads the logits waits for both
    step.read(workspace.logits.as<float>());
    require_finite(flag, step.cache->tokens());
    step.cache->commit();
  });
}

void Model::forward_by_layer(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, int chunk,
                             AttentionPolicy& attention, const OnDevice& on_device,
                             const std::function<void(std::int64_t done)>& progress) const {
  if (tokens.empty()) return;
  check_ids(tokens);
  const gpu::Stream stream = backend_->stream();
  const auto S = static_cast<std::int64_t>(tokens.size());
  const std::int64_t H = config_.hidden_size;
  Cache grown = cache.fork();
  grown.reserve(S);
  Activations act = prepare(workspace, static_cast<int>(std::min<std::int64_t>(chunk, S)));
  HiddenStates hidden(*backend_, S, H, chunk, on_device.hidden);
  clear_flag(workspace.flag);
  for (int layer = 0; layer < config_.layers; ++layer) {
    const bool last = layer + 1 == config_.layers;  // it stops at K and V
    const bool kept_on_device =
        on_device.layer && !last && config_.sliding_window[static_cast<std::size_t>(layer)] == 0;
    if (kept_on_device) grown.keep_layer_on_device(layer, S);
    for (std::int64_t at = 0; at < S; at += chunk) {
      const int T = static_cast<int>(std::min<std::int64_t>(chunk, S - at));
      act.hidden = hidden.begin(at, layer == 0);
      if (layer == 0) embed(tokens.data() + at, T, act.hidden);
      attend(layer, grown, workspace, act, T, last ? 0 : T, attention);
      if (!last) {
        mlp(layer, act, act.hidden, T);
        backend_->flag_nonfinite(act.hidden, T * H, layer, workspace.flag.device.as<std::int32_t>(), stream);
        hidden.keep(at, T);
      }
      grown.commit();
      if (progress) progress((layer * S + at + T) / config_.layers);
    }
    if (kept_on_device) grown.flush_layer(layer);
    bring_flag(workspace.flag);
    backend_->synchronize(stream);
    require_finite(workspace.flag, cache.tokens() + S - 1);
  }
  cache.replace_by(std::move(grown));
}

void Model::check_ids(std::span<const std::int32_t> tokens) const {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      fail("token id {} is outside the model's vocabulary of {}: model and tokenizer do not belong together", token,
           config_.vocab_size);
    }
  }
}

void Model::clear_flag(NanFlag& flag) const {
  const gpu::Stream stream = backend_->stream();
  if (!flag.device) {
    flag.device = backend_->allocate(sizeof no_layer, stream);
    flag.host = backend_->host_memory(sizeof no_layer);
  }
  backend_->to_device(flag.device.as<void>(), &no_layer, sizeof no_layer, stream);
}

void Model::bring_flag(const NanFlag& flag) const {
  backend_->queue_to_host(flag.host.get(), flag.device.as<void>(), sizeof no_layer, backend_->stream());
}

void Model::require_finite(const NanFlag& flag, std::int64_t last_position) const {
  std::int32_t bad_layer = no_layer;
  std::memcpy(&bad_layer, flag.host.get(), sizeof bad_layer);
  if (bad_layer == no_layer) return;
  const std::string where = bad_layer == config_.layers ? "the logits" : fmt::format("layer {}", bad_layer);
  fail("NaN or infinity in {} at position {}: the weights are damaged, or overflow 16-bit K/V", where, last_position);
}

// The residual stream of the newest `rows` positions gains the layer's attention; K and V of all T enter the cache.
void Model::attend(int layer, Cache& cache, Workspace& workspace, const Activations& act, int T, int rows,
                   AttentionPolicy& policy) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const int d = config_.head_dim;
  const std::int64_t H = config_.hidden_size;
  const std::int64_t position = cache.tokens(layer);
  const gpu::Stream stream = backend_->stream();
  const gpu::Rope rope = rope_of(layer);
  const bool rotated = config_.rope[static_cast<std::size_t>(layer)];
  const auto norm_heads = [&](float* x, int tokens, int heads, const float* weight) {
    if (!weight) return;
    const bool whole = config_.qk_norm_whole;
    backend_->rms_norm(x, whole ? tokens : tokens * heads, whole ? heads * d : d, weight, config_.rms_norm_eps, x,
                       stream);
  };

  const float* const input = normed(act.hidden, w.attention_norm, act, T);
  backend_->matmul(input, T, w.k, w.k_bias, act.k, stream);
  backend_->matmul(input, T, w.v, w.v_bias, act.v, stream);
  norm_heads(act.k, T, config_.kv_heads, w.k_norm);
  if (rotated) backend_->rope(act.k, T, config_.kv_heads, d, position, rope, stream);
  cache.append(layer, act.k, act.v, T);
  const gpu::CacheView view = cache.view(layer);
  const std::int64_t window = config_.sliding_window[static_cast<std::size_t>(layer)];
  const bool global = window == 0;
  const GlobalLayer at{*backend_, stream, layer, view, cache.store(), config_.query_heads, T, workspace.scratch};
  const int queries = global ? std::max(rows, policy.queries_wanted(at)) : rows;  // of the newest positions
  if (queries == 0) return;

  backend_->matmul(input + (T - queries) * H, queries, w.q, w.q_bias, act.q, stream);
  norm_heads(act.q, queries, config_.query_heads, w.q_norm);
  if (rotated) backend_->rope(act.q, queries, config_.query_heads, d, position + T - queries, rope, stream);
  scale_queries(act.q, queries, position + T - queries);

  if (global) policy.see_queries(at, act.q, queries);
  if (rows == 0) return;
  const float* const q = act.q + static_cast<std::int64_t>(queries - rows) * config_.query_heads * d;
  if (global) {
    policy.attend(at, q, rows, act.mixed);
  } else {
    backend_->attend_causal(view, q, rows, config_.query_heads, window, act.mixed, stream);
  }
  backend_->matmul(act.mixed, rows, w.o, w.o_bias, act.delta, stream);
  add_residual(act.hidden + (T - rows) * H, w.attended_norm, act, rows);
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
void Model::scale_queries(float* q, int T, std::int64_t position) const {
  const std::int64_t width = static_cast<std::int64_t>(config_.query_heads) * config_.head_dim;
  if (config_.attention_scale > 0) {
    scale(q, T * width, config_.attention_scale * std::sqrt(static_cast<float>(config_.head_dim)));
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
void Model::add_residual(float* hidden, const float* norm, const Activations& act, int rows) const {
  const gpu::Stream stream = backend_->stream();
  const std::int64_t n = static_cast<std::int64_t>(rows) * config_.hidden_size;
  if (norm) {
    backend_->rms_norm(act.delta, rows, config_.hidden_size, norm, config_.rms_norm_eps, act.delta, stream);
  }
  scale(act.delta, n, config_.residual_scale);
  backend_->add(hidden, act.delta, n, stream);
}

// Logits of `rows` positions.
void Model::output(Workspace& workspace, const NanFlag& flag, const Activations& act, const float* hidden,
                   int rows) const {
  const gpu::Stream stream = backend_->stream();
  const std::int64_t count = static_cast<std::int64_t>(rows) * config_.vocab_size;
  const std::uint64_t bytes = static_cast<std::uint64_t>(count) * sizeof(float);
  if (workspace.logits.bytes() < bytes) workspace.logits = backend_->allocate(bytes, stream);
  auto* const logits = workspace.logits.as<float>();
  backend_->rms_norm(hidden, rows, config_.hidden_size, weights_.final_norm, config_.rms_norm_eps, act.normed, stream);
  backend_->matmul(act.normed, rows, weights_.output, nullptr, logits, stream);
  scale(logits, count, config_.logit_scale);
  backend_->flag_nonfinite(logits, count, config_.layers, flag.device.as<std::int32_t>(), stream);
}

void Model::mlp(int layer, const Activations& act, float* hidden, int rows) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const gpu::Stream stream = backend_->stream();
  const float* const input = normed(hidden, w.mlp_norm, act, rows);
  backend_->matmul(input, rows, w.gate, w.gate_bias, act.gate, stream);
  backend_->matmul(input, rows, w.up, w.up_bias, act.up, stream);
  const std::int64_t inner = static_cast<std::int64_t>(rows) * config_.intermediate_size;
  if (config_.activation == Activation::silu) {
    backend_->silu_mul(act.gate, act.up, inner, stream);
  } else {
    backend_->gelu_mul(act.gate, act.up, inner, stream);
  }
  backend_->matmul(act.gate, rows, w.down, w.down_bias, act.delta, stream);
  add_residual(hidden, w.output_norm, act, rows);
}

}  // namespace hayloft::runtime
