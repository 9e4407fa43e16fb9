#include <algorithm>
#include <stdexcept>

#include "offload/host/mapped_file.h"
#include "runtime/decode/session.h"

// One step of several sessions at once.
namespace hayloft::runtime {

void Session::require_different(std::span<const Step> steps) {
  std::vector<const Session*> sessions;
  for (const Step& step : steps) {
    if (step.session == nullptr) throw std::logic_error("Session::step_together: a step has no session");
    if (step.session->model_ != steps.front().session->model_) {
      throw std::logic_error("Session::step_together: the sessions are not of one model");
    }
    sessions.push_back(step.session);
  }
  std::ranges::sort(sessions);
  if (std::ranges::adjacent_find(sessions) != sessions.end()) {
    throw std::logic_error("Session::step_together: a session stands there twice");
  }
}

void Session::step_together(std::span<Step> steps) {
  if (steps.empty()) return;
  require_different(steps);
  const Model& model = *steps.front().session->model_;
  std::vector<Candidates> candidates(steps.size());
  std::vector<std::uint64_t> spilled(steps.size());
  std::vector<ModelStep> passes(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    Session& session = *step.session;
    spilled[i] = session.cache_.spilled_bytes();
    const bool few = step.sampler != nullptr && step.sampler->wanted() > 0;
    passes[i] = {&session.cache_,
                 step.token,
                 &session.attention_,
                 few ? session.read_candidates(*step.sampler, candidates[i]) : session.read_all(step.logits),
                 {}};
    try {
      session.attention_.begin_step(session.cache_);
    } catch (...) {
      passes[i].failure = std::current_exception();
    }
  }
  model.forward_together(passes, *steps.front().session->workspace_);
  std::exception_ptr lost_file;
  try {
    offload::check_mapped_files();
  } catch (...) {
    lost_file = std::current_exception();
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Step& step = steps[i];
    step.failure = passes[i].failure ? passes[i].failure : lost_file;
    if (step.failure) continue;
    step.session->count_step(spilled[i]);
    if (step.sampler == nullptr) continue;
    try {
      step.next = step.session->agreed(step.sampler->wanted() > 0 ? step.sampler->sample(candidates[i])
                                                                  : step.sampler->sample(step.logits));
    } catch (...) {
      step.failure = std::current_exception();
    }
  }
}

}  // namespace hayloft::runtime
