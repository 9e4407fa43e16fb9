#include "runtime/decode/session.h"

#include <algorithm>
#include <ranges>
#include <stdexcept>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "runtime/attention/method_option_table.h"
#include "runtime/checkpoint/draft_head.h"
#include "runtime/decode/prefill_order.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime {

void SessionOptions::attend_by(SharedAttender by) {
  if (by == nullptr) throw std::logic_error("SessionOptions: there is no attender");
  attender = std::move(by);
  cache.shard = peers().shard();
}

namespace {

SessionOptions with_shape_of(SessionOptions options, const offload::Snapshot& snapshot) {
  options.cache.block_tokens = snapshot.description().shape.block_tokens;
  options.cache.columns = snapshot.description().shape.columns;
  options.cache.rows = snapshot.description().shape.rows;
  return options;
}

SessionOptions checked(SessionOptions options) {
  if (options.attender == nullptr) throw std::logic_error("Session: there is no attender");
  if (options.chunk_tokens < 1) fail("--batch {}: a chunk of prefill needs at least one token", options.chunk_tokens);
  check_prefill(options.prefill);
  if (options.cache.shard != options.peers().shard()) {
    throw std::logic_error("Session: the shard of its cache is not that of its rank");
  }
  if (!options.attender->has_whole_layers() && options.prefill.kind != PrefillOptions::Kind::exact) {
    fail("--prefill {}: is not there over ranks; use --prefill exact", name(options.prefill.kind));
  }
  return options;
}

// Memory set aside for as long as a prompt is read.
struct Reserved {
  Reserved(Cache& to, std::int64_t tokens) : cache(to) { cache.reserve(tokens); }
  ~Reserved() { cache.give_back(); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  Cache& cache;
};

}  // namespace

Session::Session(const Model& model, offload::Arena& arena, const SessionOptions& options)
    : model_(&model), options_(checked(options)), cache_(model.backend(), arena, model.config(), options.cache) {
  options.attender->require(model.backend());
  if (model.head()) head_ = std::make_unique<DraftHead>(*model.head(), arena);
  attention_.attend_by(options.attender);
  set_method(make_method({}, model.config().head_dim));
}

Session::Session(const Model& model, offload::Arena& arena, const SessionOptions& options,
                 const offload::Snapshot& snapshot)
    : model_(&model),
      options_(checked(with_shape_of(options, snapshot))),
      cache_(model.backend(), arena, model.config(), options_.cache, snapshot) {
  options.attender->require(model.backend());
  cache_.set_spread(cluster::summed(options.peers(), cache_.own_spread()));
  if (model.head()) head_ = std::make_unique<DraftHead>(*model.head(), arena);
  attention_.attend_by(options.attender);
  set_method(make_method({}, model.config().head_dim));
}

Session::Session(const Session& other, Cache cache)
    : model_(other.model_), options_(other.options_), cache_(std::move(cache)) {
  for (const auto& [key, state] : other.states_) states_.emplace(key, state->fork());
  if (other.head_) head_ = std::make_unique<DraftHead>(other.head_->fork_at(tokens()));
  attention_.attend_by(options_.attender);
  prefill_read_ = other.prefill_read_;
  context_read_by_ = other.context_read_by_;
  read_by_ = other.read_by_;
  earlier_approximate_ = other.approximate_tokens();
  earlier_approximate_.cut(tokens());
  read_by_.cut(tokens());
  set_method(other.attention_.method());
  if (other.drafts_.method()) set_draft_method(other.drafts_.method());
}

ApproximateTokens Session::approximate_tokens() const {
  ApproximateTokens all = earlier_approximate_;
  if (config().caches_behind_global()) all.add(attention_.approximate_tokens());
  return all;
}

Session Session::fork() const {
  return Session(*this, cache_.fork());
}

Session Session::fork_at(std::int64_t tokens) const {
  if (tokens < rewinds_to()) throw std::logic_error("Session::fork_at: what it keeps does not reach back that far");
  return Session(*this, cache_.fork_at(tokens));
}

bool Session::rewindable() const {
  return states_.empty() && options_.attender->has_whole_layers() &&
         config().count(LayerKind::global) == config().layers;
}

std::int64_t Session::rewinds_to() const {
  return states_.empty() && options_.attender->has_whole_layers() ? cache_.rewinds_to() : tokens();
}

OnDevice Session::fits_device(std::int64_t tokens) const {
  const gpu::DeviceMemory device = model_->backend().memory();
  if (device.budget_bytes == 0) return {.layer = false, .hidden = true};
  const ModelConfig& config = model_->config();
  const Attender& attender = *options_.attender;
  const std::uint64_t needed = attender.prefill_bytes(config.query_heads, config.head_dim, options_.chunk_tokens) +
                               workspace_bytes(config, options_.chunk_tokens) +
                               tail_bytes(config, options_.cache, cache_.tokens() + tokens, options_.chunk_tokens) +
                               model_->backend().scratch_bytes(scratch_shape(config, options_.chunk_tokens)) +
                               (head_ ? head_->bytes_to_read() : 0);
  std::uint64_t left = device.budget_bytes - std::min(device.budget_bytes, device.used_bytes + needed);
  const auto take = [&](std::uint64_t bytes) {
    if (bytes > left) return false;
    left -= bytes;
    return true;
  };
  OnDevice fits;
  int global = 0;
  while (global < config.layers && config.kind(global) != LayerKind::global) ++global;
  fits.layer =
      attender.has_whole_layers() && global < config.layers && take(cache_.layer_bytes_on_device(global, tokens));
  fits.hidden =
      take(static_cast<std::uint64_t>(tokens) * static_cast<std::uint64_t>(config.hidden_size) * sizeof(float));
  return fits;
}

void Session::append(std::span<const std::int32_t> tokens, const PrefillProgress& progress, bool more_follows) {
  model_->check_ids(tokens);  // before the first chunk, which would else stay in the session
  std::vector<MethodState*> states;
  for (const auto& [key, state] : states_) states.push_back(state.get());
  PrefillAttention attention(options_.prefill, std::move(states), options_.attender, &prefill_read_);
  const std::int64_t before = this->tokens();
  try {
    read(tokens, attention, progress);
    note_reading(before);
    if (!more_follows) cache_.shrink();
  } catch (...) {
    note_reading(before);
    states_.clear();  // they may have seen queries of tokens that never came to be
    rebind();
    throw;
  }
}

void Session::note_reading(std::int64_t before) {
  const PrefillOptions& prefill = options_.prefill;
  const bool counted = prefill.kind == PrefillOptions::Kind::sparse;
  if (tokens() == before || counted || reads_all(prefill, tokens())) return;
  const auto first = std::ranges::partition_point(
      std::views::iota(before, tokens()), [&](std::int64_t position) { return reads_all(prefill, position + 1); });
  read_by_.add(*first, prefill_label(prefill));
}

void Session::read(std::span<const std::int32_t> tokens, AttentionPolicy& attention, const PrefillProgress& progress) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  const OnDevice fits = fits_device(total);
  if (total > options_.chunk_tokens &&
      prefill_order(model_->config(), options_, total, fits.layer, model_->weight_sizes(), model_->expert_placement())
              .order == PrefillOptions::Order::layer) {
    const std::int64_t chunk = options_.chunk_tokens;
    const std::int64_t first = std::max<std::int64_t>(0, total - draft_head_positions) / chunk * chunk;
    model_->forward_by_layer(
        cache_, *workspace_, tokens, options_.chunk_tokens, attention, fits,
        [&](std::int64_t done) {
          if (progress) progress(done, total);
        },
        told(this->tokens() + first), draft_head_positions);
    return;
  }
  const Reserved reserved(cache_, total);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t T = std::min(tokens.size() - done, static_cast<std::size_t>(options_.chunk_tokens));
    const bool kept = static_cast<std::int64_t>(done + T) > total - draft_head_positions;  // by the head
    model_->forward(cache_, *workspace_, tokens.subspan(done, T), Want::none, attention, {},
                    kept ? told(this->tokens()) : SeeStates());
    offload::check_mapped_files();
    done += T;
    if (progress) progress(static_cast<std::int64_t>(done), static_cast<std::int64_t>(tokens.size()));
  }
}

AttentionShape Session::attention_shape() const {
  const ModelConfig& config = model_->config();
  return {config.global_layers(), config.query_heads, config.kv_heads, config.head_dim};
}

Session& Session::set_method(SharedMethod method) {
  require_method(method.get());
  options_.attender->require(method->options(), options_.cache);
  require_rest(model_->backend(), rest_of(method->options()));
  method->require_columns(cache_.options().columns);
  attach_method(*method);
  MethodState* const kept = state(*method);
  attention_.bind(std::move(method), kept);
  return *this;
}

void Session::require_method(const Method* method) const {
  if (method == nullptr) throw std::logic_error("Session: there is no method");
  check_method_options(method->options(), config().head_dim);
  method->require_layers(config().global_layers());
}

void Session::rebind() {
  set_method(attention_.method());
  if (drafts_.method()) set_draft_method(drafts_.method());
}

void Session::attach_method(const Method& method) {
  const std::string key = method.state_key();
  if (key.empty() || states_.count(key) > 0) return;
  states_[key] = method.make_state(attention_shape(), model_->backend());
}

void Session::detach_method(const Method& method) {
  if (method.state_key() != attention_.method()->state_key()) states_.erase(method.state_key());
}

void Session::use_columns(offload::ColumnFormat columns, offload::Arena& arena) {
  attention_.method()->require_columns(columns);
  cache_.use_columns(columns, arena);
  options_.cache.columns = columns;
}

void Session::restore(const Method& method, std::span<const std::byte> saved) {
  auto state = method.load_state(attention_shape(), model_->backend(), saved);
  if (!options_.attender->has_whole_layers()) state->forget_store();
  states_[method.state_key()] = std::move(state);
  rebind();
}

void Session::prepare(const Method& method, const StateProgress& progress) {
  attach_method(method);
  MethodState* const kept = state(method);
  if (kept == nullptr) return;
  cluster::together(options_.peers(), [&] { kept->sync_with_cache(cache_.global_views(), progress); });
}

MethodState* Session::state(const Method& method) const {
  const auto found = states_.find(method.state_key());
  return found == states_.end() ? nullptr : found->second.get();
}

void Session::set_prefill(const PrefillOptions& prefill) {
  SessionOptions changed = options_;
  changed.prefill = prefill;
  checked(changed);
  options_.prefill = prefill;
}

void Session::share_workspace(std::shared_ptr<Workspace> workspace) {
  if (workspace == nullptr) throw std::logic_error("Session: there is no workspace to compute in");
  workspace_ = std::move(workspace);
}

std::vector<float> Session::step(std::int32_t token) {
  std::vector<float> logits;
  decode(token, read_all(logits));
  return logits;
}

std::int32_t Session::next(std::int32_t token, Sampler& sampler) {
  return agreed(draw(token, sampler));
}

std::int32_t Session::agreed(std::int32_t token) const {
  return cluster::told(options_.peers(), token, cluster::Traffic::token);
}

std::int32_t Session::draw(std::int32_t token, Sampler& sampler) {
  if (sampler.wanted() == 0) return sampler.sample(step(token));
  Candidates candidates;
  decode(token, read_candidates(sampler, candidates));
  return sampler.sample(candidates);
}

ReadLogits Session::read_all(std::vector<float>& logits) const {
  logits.resize(static_cast<std::size_t>(model_->config().vocab_size));
  return [this, &logits](const float* values) {
    gpu::Backend& backend = model_->backend();
    backend.to_host(logits.data(), values, logits.size() * sizeof(float), backend.stream());
  };
}

ReadLogits Session::read_candidates(const Sampler& sampler, Candidates& candidates) const {
  const auto count = static_cast<std::size_t>(std::min(sampler.wanted(), model_->config().vocab_size));
  candidates = {std::vector<std::int32_t>(count), std::vector<float>(count)};
  return [this, &candidates](const float* values) {
    gpu::Backend& backend = model_->backend();
    backend.top_values(values, model_->config().vocab_size, static_cast<int>(candidates.tokens.size()),
                       candidates.tokens.data(), candidates.logits.data(), backend.stream());
  };
}

void Session::decode(std::int32_t token, const ReadLogits& read) {
  const std::uint64_t spilled = cache_.spilled_bytes();
  attention_.begin_step(cache_);
  model_->forward(cache_, *workspace_, {&token, 1}, Want::last, attention_, read, told(tokens()));
  offload::check_mapped_files();
  count_step(spilled);
}

void Session::count_step(std::uint64_t spilled_before) {
  attention_.counters.at(Place::link, Kind::spill) += cache_.spilled_bytes() - spilled_before;
  ++steps_;
  positions_ += tokens();
}

double Session::attended_share() const {
  const int layers = model_->config().global_layers();
  if (positions_ == 0) return 0;
  if (layers == 0) return 1;  // layers that slide attend to all that they see
  return attention_.positions_attended() / layers / static_cast<double>(positions_);
}

std::vector<float> Session::score(std::span<const std::int32_t> tokens) {
  model_->check_ids(tokens);
  gpu::Backend& backend = model_->backend();
  PrefillAttention exact({}, {}, options_.attender);
  std::vector<float> logits;
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t T = std::min(tokens.size() - done, static_cast<std::size_t>(options_.chunk_tokens));
    model_->forward(
        cache_, *workspace_, tokens.subspan(done, T), Want::all, exact,
        [&](const float* values) {
          const std::size_t before = logits.size();
          logits.resize(before + T * static_cast<std::size_t>(model_->config().vocab_size));
          backend.to_host(logits.data() + before, values, (logits.size() - before) * sizeof(float), backend.stream());
        },
        told(this->tokens()));
    done += T;
  }
  return logits;
}

}  // namespace hayloft::runtime
