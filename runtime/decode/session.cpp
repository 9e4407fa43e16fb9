#include "runtime/decode/session.h"

#include <algorithm>

#include "offload/error.h"
#include "runtime/decode/prefill_order.h"

namespace hayloft::runtime {
namespace {

SessionOptions with_shape_of(SessionOptions options, const offload::Snapshot& snapshot) {
  options.cache.block_tokens = snapshot.description().shape.block_tokens;
  options.cache.columns = snapshot.description().shape.columns;
  return options;
}

SessionOptions checked(SessionOptions options) {
  if (options.chunk_tokens < 1) fail("--batch {}: a chunk of prefill needs at least one token", options.chunk_tokens);
  check_prefill(options.prefill);
  return options;
}

class SeesAll : public StepObserver {
 public:
  explicit SeesAll(Session::Sight sight) : sight_(std::move(sight)) {}
  bool wants(int, std::int64_t) override { return true; }
  void see(const ObservedStep& step) override { sight_(step.layer, step.cache, step.q, step.trace); }

 private:
  Session::Sight sight_;
};

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
    : model_(&model), options_(checked(options)), cache_(model.backend(), arena, model.config(), options.cache) {}

Session::Session(const Model& model, offload::Arena& arena, const SessionOptions& options,
                 const offload::Snapshot& snapshot)
    : model_(&model),
      options_(checked(with_shape_of(options, snapshot))),
      cache_(model.backend(), arena, model.config(), options_.cache, snapshot) {}

Session::Session(const Session& other, Cache cache)
    : model_(other.model_), options_(other.options_), cache_(std::move(cache)) {
  for (const auto& [key, state] : other.states_) states_.emplace(key, state->fork());
}

Session Session::fork() const {
  return Session(*this, cache_.fork());
}

OnDevice Session::fits_device(std::int64_t tokens) const {
  const gpu::DeviceMemory device = model_->backend().memory();
  if (device.budget_bytes == 0) return {.layer = false, .hidden = true};
  const ModelConfig& config = model_->config();
  const std::uint64_t needed = workspace_bytes(config, options_.chunk_tokens) +
                               tail_bytes(config, options_.cache, cache_.tokens() + tokens, options_.chunk_tokens) +
                               model_->backend().scratch_bytes(scratch_shape(config, options_.chunk_tokens));
  std::uint64_t left = device.budget_bytes - std::min(device.budget_bytes, device.used_bytes + needed);
  const auto take = [&](std::uint64_t bytes) {
    if (bytes > left) return false;
    left -= bytes;
    return true;
  };
  OnDevice fits;
  const auto global = std::find(config.sliding_window.begin(), config.sliding_window.end(), 0);
  fits.layer = global != config.sliding_window.end() &&
               take(cache_.held_bytes(static_cast<int>(global - config.sliding_window.begin()), tokens));
  fits.hidden =
      take(static_cast<std::uint64_t>(tokens) * static_cast<std::uint64_t>(config.hidden_size) * sizeof(float));
  return fits;
}

void Session::append(std::span<const std::int32_t> tokens, const PrefillProgress& progress) {
  std::vector<MethodState*> watchers;
  for (const auto& [key, state] : states_) watchers.push_back(state.get());
  Attending attending;
  attending.prefill = options_.prefill;
  attending.watchers = watchers;
  try {
    read(tokens, attending, progress);
  } catch (...) {
    states_.clear();  // they may have seen queries of tokens that never came to be
    throw;
  }
}

void Session::read(std::span<const std::int32_t> tokens, const Attending& attending, const PrefillProgress& progress) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  const OnDevice fits = fits_device(total);
  if (total > options_.chunk_tokens &&
      prefill_order(model_->config(), options_, total, fits.layer).order == PrefillOptions::Order::layer) {
    model_->forward_by_layer(cache_, workspace_, tokens, options_.chunk_tokens, attending, fits,
                             [&](std::int64_t done) {
                               if (progress) progress(done, total);
                             });
    return;
  }
  const Reserved reserved(cache_, total);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t T = std::min(tokens.size() - done, static_cast<std::size_t>(options_.chunk_tokens));
    model_->forward(cache_, workspace_, tokens.subspan(done, T), Want::none, attending);
    done += T;
    if (progress) progress(static_cast<std::int64_t>(done), static_cast<std::int64_t>(tokens.size()));
  }
}

StateShape Session::state_shape() const {
  const ModelConfig& config = model_->config();
  return {config.global_layers(), config.query_heads, config.kv_heads, config.head_dim};
}

void Session::watch(const Method& method) {
  const std::string key = method.state_key();
  if (key.empty() || states_.count(key) > 0) return;
  states_[key] = method.make_state(state_shape(), model_->backend());
}

void Session::restore(const Method& method, std::span<const std::byte> saved) {
  states_[method.state_key()] = method.load_state(state_shape(), model_->backend(), saved);
}

void Session::prepare(const Method& method, const StateProgress& progress) {
  watch(method);
  const auto state = states_.find(method.state_key());
  if (state != states_.end()) state->second->follow(cache_.global_views(), progress);
}

const MethodState* Session::state(const Method& method) const {
  const auto state = states_.find(method.state_key());
  return state == states_.end() ? nullptr : state->second.get();
}

void Session::set_prefill(const PrefillOptions& prefill) {
  check_prefill(prefill);
  options_.prefill = prefill;
}

std::vector<float> Session::step(std::int32_t token, const Method& method) {
  return decode(token, method, 0, nullptr);
}

std::int32_t Session::next(std::int32_t token, const Method& method, Sampler& sampler) {
  if (sampler.wanted() == 0) return sampler.sample(step(token, method));
  Candidates candidates;
  decode(token, method, sampler.wanted(), &candidates);
  return sampler.sample(candidates);
}

std::vector<float> Session::decode(std::int32_t token, const Method& method, int candidate_count,
                                   Candidates* candidates) {
  const std::uint64_t spilled = cache_.spilled_bytes();
  prepare(method);
  Attending attending;
  attending.method = &method;
  const auto state = states_.find(method.state_key());
  if (state != states_.end()) attending.state = state->second.get();
  attending.counters = &counters_;
  attending.observers = observers_;
  attending.candidates = candidates;
  attending.candidate_count = candidate_count;
  std::vector<float> logits = model_->forward(cache_, workspace_, {&token, 1}, Want::last, attending);
  counters_.at(Place::link, Kind::spill) += cache_.spilled_bytes() - spilled;
  ++steps_;
  return logits;
}

void Session::observe(Sight sight) {
  observe(std::make_shared<SeesAll>(std::move(sight)));
}

std::vector<float> Session::score(std::span<const std::int32_t> tokens) {
  std::vector<float> logits;
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t T = std::min(tokens.size() - done, static_cast<std::size_t>(options_.chunk_tokens));
    const std::vector<float> chunk = model_->forward(cache_, workspace_, tokens.subspan(done, T), Want::all);
    logits.insert(logits.end(), chunk.begin(), chunk.end());
    done += T;
  }
  return logits;
}

}  // namespace hayloft::runtime
