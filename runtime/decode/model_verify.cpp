#include <algorithm>
#include <stdexcept>

#include "runtime/decode/model.h"

// Several tokens of one sequence in one pass, each as it would be computed alone.
namespace hayloft::runtime {

int Model::verified_at_once() const {
  int widest =
      std::max({config_.hidden_size, config_.feed_forward_width(), config_.query_heads * config_.widest_head()});
  if (config_.count(LayerKind::recurrent) > 0) widest = std::max(widest, static_cast<int>(config_.delta.values()));
  const int tokens = backend_->tokens_verified_at_once(widest);
  return near_ ? std::min(tokens, near_->tokens_verified_at_once(widest)) : tokens;
}

int Model::verify(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, AttentionPolicy& attention,
                  const KeepTokens& keep, const SeeStates& see) const {
  check_ids(tokens);
  require_own(cache);
  const int T = static_cast<int>(tokens.size());
  if (T < 1 || T > verified_at_once() || T > cache.tokens_up_to_spill() || !attention.each_as_alone()) {
    throw std::logic_error("Model: so many tokens are not verified in one pass");
  }
  const gpu::Stream stream = backend_->stream();
  const Activations act = prepare(workspace, T);
  clear_flag(workspace.flag);
  const Uncommitted uncommitted{cache};
  cache.hold_pending();
  std::unique_ptr<gpu::Step> step = backend_->begin_step(T);

  embed(tokens.data(), T, act.hidden);
  for (int layer = 0; layer < config_.layers; ++layer) {
    attend(layer, cache, workspace, act, T, T, attention, layer > 0);
    mlp(layer, act, act.hidden, T, {norm_behind(layer), &workspace.flag});
    if (step) step->part_ends();
  }
  output(workspace, act, T);
  auto* const logits = workspace.logits.as<float>();
  flag_logits(logits, T, workspace.flag);
  bring_flag(workspace.flag);
  backend_->synchronize(stream);
  if (T == 1) {
    require_finite(workspace.flag, cache.tokens());
  } else if (!is_finite(workspace.flag)) {  // of a token that may not stay: the first one does
    cache.abandon();
    step.reset();
    return verify(cache, workspace, tokens.first(1), attention, keep, see);
  }
  const int kept = keep(logits, T);
  if (kept < 1 || kept > T) throw std::logic_error("Model: not so many tokens have been verified");
  if (see) see(tokens.first(static_cast<std::size_t>(kept)), act.normed);
  if (kept < T) advance_again(cache, workspace, act, T, kept);
  if (step) step->ends();
  cache.keep(kept);
  cache.commit();
  return kept;
}

// Copies what a recurrent layer is given of T tokens, before it is changed.
void Model::keep_inputs(int layer, Workspace& workspace, const Activations& act, int T) const {
  const RecurrentInputs of = recurrent_inputs(layer, workspace, T);
  const gpu::Stream stream = backend_->stream();
  const gpu::DeltaShape& shape = config_.delta;
  const auto bytes = [T](std::int64_t width) { return static_cast<std::uint64_t>(T * width) * sizeof(float); };
  backend_->copy(of.channels, act.q, bytes(shape.channels()), stream);
  backend_->copy(of.step, act.k, bytes(shape.value_heads), stream);
  backend_->copy(of.rate, act.v, bytes(shape.value_heads), stream);
}

Model::RecurrentInputs Model::recurrent_inputs(int layer, Workspace& workspace, int T) const {
  int before = 0;
  for (int i = 0; i < layer; ++i) before += config_.kind(i) == LayerKind::recurrent ? 1 : 0;
  const gpu::DeltaShape& shape = config_.delta;
  const std::int64_t width = shape.channels() + 2 * shape.value_heads;
  const auto bytes = static_cast<std::uint64_t>(config_.count(LayerKind::recurrent) * T * width) * sizeof(float);
  if (workspace.recurrent.bytes() < bytes) workspace.recurrent = backend_->allocate(bytes, backend_->stream());
  float* const first = workspace.recurrent.as<float>() + before * T * width;
  return {first, first + T * shape.channels(), first + T * (shape.channels() + shape.value_heads)};
}

// The state of every recurrent layer becomes that behind the first `kept` tokens.
void Model::advance_again(Cache& cache, Workspace& workspace, const Activations& act, int T, int kept) const {
  if (config_.count(LayerKind::recurrent) == 0) return;
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (config_.kind(layer) != LayerKind::recurrent) continue;
    const RecurrentInputs of = recurrent_inputs(layer, workspace, T);
    backend_->gated_delta(weights_.layers[static_cast<std::size_t>(layer)].delta.layer,
                          cache.advance_again(layer, kept), of.channels, of.step, of.rate, act.output_gate, kept,
                          act.mixed, backend_->stream());
  }
}

}  // namespace hayloft::runtime
