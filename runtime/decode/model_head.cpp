#include <stdexcept>

#include "runtime/checkpoint/draft_head.h"
#include "runtime/decode/model.h"

// Computes a head that predicts further tokens: the layer of a model, behind a joint of its own.
namespace hayloft::runtime {
namespace {

// The head's one layer slides, and asks no policy how to attend.
class NoGlobalLayer final : public AttentionPolicy {
 public:
  void attend(const LayerStep&, const float*, int, int, float*) override {
    throw std::logic_error("Model: a head has no global layer");
  }
};

}  // namespace

Model::Model(const Model& whole)
    : config_(draft_head_config(whole.config_)), form_(whole.form_), backend_(whole.backend_) {
  const HeadWeights& head = *whole.weights_.head;
  weights_.embedding = whole.weights_.embedding;
  weights_.output = whole.weights_.output;
  weights_.inverse_frequency = whole.weights_.inverse_frequency;
  weights_.final_norm = head.final_norm;
  weights_.layers = {head.layer};
  weights_.head = head;
  weight_sizes_ = head_sizes(whole.weights_, whole.config_);
}

void Model::read_behind(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens,
                        const float* states) const {
  NoGlobalLayer policy;
  const int T = static_cast<int>(tokens.size());
  const Uncommitted uncommitted{cache};
  const Activations act = prepare(workspace, T);
  join(workspace, tokens, states, act);
  attend(0, cache, workspace, act, T, 0, policy);
  cache.commit();
}

const float* Model::predict_behind(Cache& cache, Workspace& workspace, std::int32_t token, const float* state,
                                   const ReadLogits& read) const {
  NoGlobalLayer policy;
  check_ids({&token, 1});
  const Uncommitted uncommitted{cache};
  const std::unique_ptr<gpu::Step> step = backend_->begin_step(1);
  const Activations act = prepare(workspace, 1);
  clear_flag(workspace.flag);
  join(workspace, {&token, 1}, state, act);
  attend(0, cache, workspace, act, 1, 1, policy);
  mlp(0, act, act.hidden, 1, {weights_.final_norm});
  output(workspace, act, 1);
  flag_logits(workspace.logits.as<float>(), 1, workspace.flag);
  bring_flag(workspace.flag);
  backend_->synchronize(backend_->stream());
  if (!is_finite(workspace.flag)) return nullptr;
  read(workspace.logits.as<float>());
  if (step) step->ends();
  cache.commit();
  return act.normed;
}

// Puts into act.hidden what enters the head's layer: one matrix over the token's embedding and the state side by side,
// each under its norm.
void Model::join(Workspace& workspace, std::span<const std::int32_t> tokens, const float* states,
                 const Activations& act) const {
  const gpu::Stream stream = backend_->stream();
  const int T = static_cast<int>(tokens.size()), H = config_.hidden_size;
  const HeadWeights& head = *weights_.head;
  const std::int64_t part = std::int64_t{T} * H;
  const auto bytes = static_cast<std::uint64_t>(4 * part) * sizeof(float);
  if (workspace.joined.bytes() < bytes) workspace.joined = backend_->allocate(bytes, stream);
  auto* const parts = workspace.joined.as<float>();
  embed(tokens.data(), T, parts);
  backend_->rms_norm(parts, T, H, head.embedding_norm, config_.rms_norm_eps, parts, stream);
  backend_->rms_norm(states, T, H, head.state_norm, config_.rms_norm_eps, parts + part, stream);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(2 * T));
  for (int t = 0; t < T; ++t) {
    rows[static_cast<std::size_t>(2 * t)] = t;
    rows[static_cast<std::size_t>(2 * t) + 1] = T + t;
  }
  backend_->gather_rows(parts, rows, H, parts + 2 * part, stream);
  backend_->matmul(parts + 2 * part, T, head.join, nullptr, act.hidden, stream);
}

}  // namespace hayloft::runtime
