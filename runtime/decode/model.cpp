#include "runtime/decode/model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/decode/hidden_states.h"

namespace hayloft::runtime {
namespace {

// Floats per token of the pieces of Activations, in their order.
std::array<std::int64_t, 13> activation_widths(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t inner = config.intermediate_size;
  const std::int64_t query = static_cast<std::int64_t>(config.query_heads) * config.widest_head();
  const std::int64_t kv = config.widest_kv();
  const gpu::DeltaShape& delta = config.delta;  // all zero where no layer is recurrent
  const std::int64_t values = delta.values();
  const std::int64_t kv_or_steps = std::max<std::int64_t>(kv, delta.value_heads);
  const Experts& experts = config.experts;
  const std::int64_t ways = experts.used;  // 0 where there are none
  const std::int64_t gates = std::max(config.attention_gate ? query : 0, values);
  return {hidden,
          hidden,
          std::max(query, delta.channels()),
          kv_or_steps,
          kv_or_steps,
          std::max(query, values),
          inner,
          inner,
          hidden,
          gates,
          experts.count > 0 ? aligned_width(experts.count) + 4 : 0,
          ways * hidden,
          (ways + (experts.shared_inner > 0 ? 1 : 0)) * hidden};
}

constexpr std::int32_t no_layer = std::numeric_limits<std::int32_t>::max();  // has a NaN or an infinity

// Likewise of Mixture, where it lies apart.
std::array<std::int64_t, 6> mixture_widths(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const auto widths = activation_widths(config);
  return {hidden, inner, inner, hidden, widths[11], widths[12]};
}

template <std::size_t N>
std::uint64_t pieces_bytes(const std::array<std::int64_t, N>& widths, int T) {
  std::int64_t floats = 0;
  for (const std::int64_t width : widths) floats += aligned_width(width * T);
  return static_cast<std::uint64_t>(floats) * sizeof(float);
}
std::uint64_t activation_bytes(const ModelConfig& config, int T) {
  return pieces_bytes(activation_widths(config), T);
}

// Cuts memory into pieces of so many floats for each of T tokens, so that products read alike, however many tokens
// there are.
template <std::size_t N>
std::array<float*, N> cut(float* memory, const std::array<std::int64_t, N>& widths, int T) {
  std::array<float*, N> pieces{};
  for (std::size_t i = 0; i < N; ++i) {
    pieces[i] = memory;
    memory += aligned_width(widths[i] * T);
  }
  return pieces;
}

ExpertPlacement first_placement(Checkpoint& checkpoint, const ModelConfig& config, const gpu::Backend& backend,
                                WeightForm form, ExpertPlace asked, bool head) {
  const gpu::DeviceMemory memory = backend.memory();
  if (config.experts.count == 0 || memory.budget_bytes == 0) return {};
  const std::uint64_t left = memory.budget_bytes - std::min(memory.budget_bytes, memory.used_bytes);
  return runtime::place_experts(weight_sizes(checkpoint, form, head), asked, left);
}

ModelConfig with_rope(ModelConfig config, const RopeOverrides& rope) {
  set_rope(config, rope);
  return config;
}

}  // namespace

std::uint64_t workspace_bytes(const ModelConfig& config, int T) {
  return activation_bytes(config, T) + static_cast<std::uint64_t>(config.vocab_size) * sizeof(float);
}

gpu::ScratchShape scratch_shape(const ModelConfig& config, int T) {
  const int values = static_cast<int>(config.delta.values());
  return {T, config.query_heads, config.widest_head(),
          std::max({config.hidden_size, config.feed_forward_width(), values})};
}

Model::Model(Checkpoint& checkpoint, gpu::Backend& backend, WeightForm form, const RopeOverrides& rope,
             ExpertPlace experts, bool head)
    : config_(with_rope(checkpoint.config(), rope)),
      form_(form),
      backend_(&backend),
      placement_(first_placement(checkpoint, config_, backend, form, experts, head)),
      near_(placement_.place == ExpertPlace::near ? gpu::make_cpu_backend(backend.threads()) : nullptr),
      weights_(load_weights(checkpoint, config_, backend, form, placement_.place != ExpertPlace::device, head)),
      weight_sizes_(placed(runtime::weight_sizes(weights_, config_), placement_)) {
  if (placement_.slots()) slots_ = std::make_unique<ExpertSlots>(backend, weights_.layers, placement_);
  if (weights_.head) head_.reset(new Model(*this));
  if (backend.products() == gpu::Products::exact || weights_.packed) return;
  fail("{}: products {}: its weights are not quantised; take exact products, or weights q8 or q4 besides",
       checkpoint.path(), gpu::name(backend.products()));
}

Model::Model(const std::filesystem::path& path, gpu::Backend& backend, WeightForm form, const RopeOverrides& rope,
             ExpertPlace experts, bool head)
    : Model(*Checkpoint::open(path), backend, form, rope, experts, head) {}

std::string Model::run_options() const {
  std::string options = config_.rope_overrides;
  if (form_ != WeightForm::stored) options += fmt::format("{}--weights {}", options.empty() ? "" : " ", name(form_));
  return options;
}

void Model::place_experts(const ExpertPlacement& placement) {
  const bool on_device = placement_.place == ExpertPlace::device || placement.place == ExpertPlace::device;
  if (on_device || placement == placement_) return;
  slots_.reset();
  placement_ = placement;
  near_ = placement_.place == ExpertPlace::near ? gpu::make_cpu_backend(backend_->threads()) : nullptr;
  weight_sizes_ = placed(runtime::weight_sizes(weights_, config_), placement_);
  if (placement_.slots()) slots_ = std::make_unique<ExpertSlots>(*backend_, weights_.layers, placement_);
}

std::uint64_t Model::host_expert_bytes() const {
  return placement_.place == ExpertPlace::device ? 0 : weights_.mixture_bytes;
}

void Model::expect_positions(std::int64_t positions) {
  const std::vector<float> before = config_.global_table.inverse_frequency;
  set_rope(config_, {}, positions);
  if (head_) head_->config_.global_table = config_.global_table;
  const std::vector<float>& now = config_.global_table.inverse_frequency;
  if (now == before) return;
  backend_->to_device(weights_.inverse_frequency, now.data(), now.size() * sizeof(float), backend_->stream());
  backend_->synchronize(backend_->stream());
}

Model::Activations Model::prepare(Workspace& workspace, int T) const {
  const auto widths = activation_widths(config_);
  if (T > workspace.capacity) {
    workspace.memory = {};
    workspace.near = {};
    workspace.capacity = 0;  // should there be none left
    workspace.memory = backend_->allocate(activation_bytes(config_, T), backend_->stream());
    if (near_) workspace.near = near_->allocate(pieces_bytes(mixture_widths(config_), T), near_->stream());
    workspace.capacity = T;
  }
  const auto p = cut(workspace.memory.as<float>(), widths, workspace.capacity);
  const Mixture mixture{p[6], p[7], p[8], p[10], p[11], p[12], nullptr};
  Mixture near{};
  if (near_) {
    const auto n = cut(workspace.near.as<float>(), mixture_widths(config_), workspace.capacity);
    near = {n[1], n[2], n[3], nullptr, n[4], n[5], n[0]};
  }
  return {p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8], p[9], mixture, near};
}

void Model::forward(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, Want want,
                    AttentionPolicy& attention, const ReadLogits& read, const SeeStates& see) const {
  if (tokens.empty()) return;
  check_ids(tokens);
  require_own(cache);
  const int T = static_cast<int>(tokens.size());
  const std::int64_t H = config_.hidden_size;
  const gpu::Stream stream = backend_->stream();
  const Activations act = prepare(workspace, T);
  clear_flag(workspace.flag);
  const Uncommitted uncommitted{cache};
  const std::unique_ptr<gpu::Step> step = backend_->begin_step(T);

  if (T == 1) fetch_ahead(-1, cache);
  embed(tokens.data(), T, act.hidden);
  int rows = T;  // how many of the newest positions are still needed
  for (int layer = 0; layer < config_.layers; ++layer) {
    if (layer + 1 == config_.layers && want == Want::last) rows = 1;
    if (layer + 1 == config_.layers && want == Want::none && !see) rows = 0;
    attend(layer, cache, workspace, act, T, rows, attention, layer > 0);
    if (rows == 0) break;
    const std::vector<ExpertTokens> chosen =
        mlp(layer, act, act.hidden + (T - rows) * H, rows, {norm_behind(layer), &workspace.flag});
    if (T == 1) show_experts(layer, chosen, 0, cache.tokens(), attention);
    if (step) step->part_ends();
  }
  if (want != Want::none) {
    output(workspace, act, rows);
    flag_logits(workspace.logits.as<float>(), rows, workspace.flag);
  }
  bring_flag(workspace.flag);  // first, so that who reads the logits waits for both
  if (want != Want::none && read) {
    read(workspace.logits.as<float>());
  } else {
    backend_->synchronize(stream);
  }
  require_finite(workspace.flag, cache.tokens() + T - 1);
  if (see && rows == T) see(tokens, act.normed);
  if (step) step->ends();
  cache.commit();
}

void Model::forward_by_layer(Cache& cache, Workspace& workspace, std::span<const std::int32_t> tokens, int chunk,
                             AttentionPolicy& attention, const OnDevice& on_device,
                             const std::function<void(std::int64_t done)>& progress, const SeeStates& see,
                             std::int64_t seen) const {
  if (tokens.empty()) return;
  check_ids(tokens);
  require_own(cache);
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
    const bool kept_on_device = on_device.layer && !last && config_.kind(layer) == LayerKind::global;
    if (kept_on_device) grown.keep_layer_on_device(layer, S);
    for (std::int64_t at = 0; at < S; at += chunk) {
      const int T = static_cast<int>(std::min<std::int64_t>(chunk, S - at));
      act.hidden = hidden.begin(at, layer == 0);
      if (layer == 0) embed(tokens.data() + at, T, act.hidden);
      const bool states = last && see && at + T > S - seen;
      attend(layer, grown, workspace, act, T, last && !states ? 0 : T, attention);
      if (states) {
        mlp(layer, act, act.hidden, T, {weights_.final_norm});
        see(tokens.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(T)), act.normed);
      }
      if (!last) {
        mlp(layer, act, act.hidden, T, {nullptr, &workspace.flag});
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

void Model::show_experts(int layer, std::span<const ExpertTokens> chosen, std::int32_t row, std::int64_t position,
                         AttentionPolicy& attention) const {
  if (chosen.empty() || !attention.is_watched()) return;
  attention.see_experts(layer, position, config_.experts.count, experts_of(row, chosen));
}

void Model::require_own(const Cache& cache) const {
  if (!cache.fits(config_)) throw std::logic_error("Model: the cache is that of another model");
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

bool Model::is_finite(const NanFlag& flag) {
  std::int32_t bad_layer = no_layer;
  std::memcpy(&bad_layer, flag.host.get(), sizeof bad_layer);
  return bad_layer == no_layer;
}

void Model::require_finite(const NanFlag& flag, std::int64_t last_position) const {
  if (is_finite(flag)) return;
  std::int32_t bad_layer = no_layer;
  std::memcpy(&bad_layer, flag.host.get(), sizeof bad_layer);
  const std::string where = bad_layer == config_.layers ? "the logits" : fmt::format("layer {}", bad_layer);
  fail("NaN or infinity in {} at position {}: the weights are damaged, or overflow 16-bit K/V", where, last_position);
}

}  // namespace hayloft::runtime
