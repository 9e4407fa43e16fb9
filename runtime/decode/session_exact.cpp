#include <algorithm>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "runtime/decode/exact_attention.h"
#include "runtime/decode/session.h"

// Verifying several tokens in a pass, and drafting them.
namespace hayloft::runtime {

int Session::verified_at_once() const {
  return options_.attender->has_whole_layers() ? model_->verified_at_once() : 1;
}

std::int64_t Session::exact_ahead() const {
  if (verified_at_once() <= 1) return 0;
  const Method& method = *attention_.method();
  for (const gpu::CacheView& view : cache_.global_views()) {
    if (method.plan(view, model_->config().query_heads).by->options().name != "dense") return 0;
  }
  return attention_.unwanted_from(tokens());
}

int Session::verify(std::span<const std::int32_t> tokens, const KeepTokens& keep) {
  static const SharedMethod dense = make_method({}, model_->config().head_dim);
  const std::uint64_t spilled = cache_.spilled_bytes();
  if (!options_.attender->has_whole_layers()) {
    fail("drafts are verified where one process holds the context: not over ranks");
  }
  std::int64_t most = std::min<std::int64_t>(verified_at_once(), cache_.tokens_up_to_spill());
  most = std::min(most, std::max<std::int64_t>(1, attention_.unwanted_from(this->tokens())));
  tokens = tokens.first(static_cast<std::size_t>(std::min<std::int64_t>(most, std::ssize(tokens))));
  ExactAttention attention(*dense);
  const int kept = model_->verify(cache_, *workspace_, tokens, attention, keep, told(this->tokens()));
  offload::check_mapped_files();
  std::int64_t positions = 0;
  for (int i = 0; i < kept; ++i) positions += this->tokens() - i;
  attention_.count_exact(attention.counters(kept), kept, positions, model_->config().global_layers());
  attention_.counters.at(Place::link, Kind::spill) += cache_.spilled_bytes() - spilled;
  steps_ += kept;
  positions_ += positions;
  return kept;
}

std::int32_t Session::draw(const float* logits, Sampler& sampler) const {
  if (sampler.wanted() == 0) {
    std::vector<float> all;
    read_all(all)(logits);
    return sampler.sample(all);
  }
  Candidates candidates;
  read_candidates(sampler, candidates)(logits);
  return sampler.sample(candidates);
}

void Session::set_draft_method(SharedMethod method) {
  require_method(method.get());
  options_.attender->require(method->options(), options_.cache);
  require_rest(model_->backend(), rest_of(method->options()));
  method->require_columns(cache_.options().columns);
  attach_method(*method);
  MethodState* const kept = state(*method);
  drafts_.attend_by(options_.attender);
  drafts_.bind(std::move(method), kept);
}

std::int32_t Session::draft(std::int32_t token, Sampler& sampler) {
  require_method(drafts_.method().get());
  drafts_.begin_step(cache_);
  std::int32_t next = 0;
  model_->forward(cache_, *workspace_, {&token, 1}, Want::last, drafts_,
                  [&](const float* logits) { next = draw(logits, sampler); });
  offload::check_mapped_files();
  return next;
}

SeeStates Session::told(std::int64_t before) {
  if (!head_) return {};
  return [this, before](std::span<const std::int32_t> tokens, const float* states) mutable {
    head_->read(before, tokens, states, *workspace_);
    before += static_cast<std::int64_t>(tokens.size());
  };
}

void Session::require_head() const {
  if (head_) return;
  fail("--draft mtp: the model was loaded without its head that predicts further tokens; load it with `head` true");
}

std::vector<std::int32_t> Session::draft_by_head(std::int32_t token, Sampler sampler, int most) {
  require_head();
  if (!head_knows_text()) return {};
  std::vector<std::int32_t> tokens =
      head_->draft(token, most, *workspace_, [&](const float* logits) { return draw(logits, sampler); });
  offload::check_mapped_files();
  return tokens;
}

DraftCosts Session::draft_costs(DraftSource source) const {
  if (source == DraftSource::method) require_method(drafts_.method().get());
  if (source == DraftSource::head) require_head();
  static const SharedMethod dense = make_method({}, model_->config().head_dim);
  const ModelConfig& config = model_->config();
  Counters all, few;
  for (const gpu::CacheView& view : cache_.global_views()) {
    all += dense->count(view, config.query_heads);
    if (source == DraftSource::method) few += drafts_.method()->count(view, config.query_heads);
  }
  const WeightSizes* weights = &model_->weight_sizes();
  if (source == DraftSource::head) {
    weights = &head_->model().weight_sizes();
    few = dense->count(head_->view(), config.query_heads);
  }
  return runtime::draft_costs(config, model_->weight_sizes(), all,
                              source == DraftSource::text ? std::nullopt : std::optional(DraftStep{*weights, few}),
                              model_->backend().memory().budget_bytes > 0);
}

}  // namespace hayloft::runtime
