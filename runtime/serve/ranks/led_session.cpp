#include "runtime/serve/ranks/led_session.h"

#include <optional>

#include "runtime/context/column_choice.h"
#include "runtime/context/saved_shards.h"

namespace hayloft::runtime::serve {

LedSession LedSession::open(const std::shared_ptr<Leader>& leader, const ModelSource& source, offload::Arena& arena,
                            const SessionOptions& options, const SharedMethod& method) {
  Session session(source.model, arena, options);
  session.set_method(method);
  return {std::move(session), leader ? Led(leader, leader->open()) : Led()};
}

LedSession LedSession::fork() const {
  Session forked = session_.fork();
  return opened_like({std::move(forked), led_ ? Led(led_.shared(), led_.leader().fork(led_.session())) : Led()});
}

LedSession LedSession::fork_at(std::int64_t tokens) const {
  return tokens == this->tokens() ? fork() : opened_like(LedSession(session_.fork_at(tokens)));
}

void LedSession::set_opened(bool in_file) {
  const offload::Store& store = cache().store();
  opened_.clear();
  for (int layer = 0; layer < store.shape().layers; ++layer) opened_.push_back(store.layer(layer).blocks.size());
  in_file_ = in_file;
}

LedSession LedSession::opened_like(LedSession forked) const {
  forked.opened_ = opened_;
  forked.in_file_ = in_file_;
  return forked;
}

void LedSession::append(std::span<const std::int32_t> tokens, bool more_follows) {
  const auto work = [&] { session_.append(tokens, {}, more_follows); };
  led_ ? led_.leader().append(led_.session(), tokens, more_follows, work) : work();
}

std::vector<float> LedSession::score(std::span<const std::int32_t> tokens) {
  std::vector<float> logits;
  const auto work = [&] { logits = session_.score(tokens); };
  led_ ? led_.leader().score(led_.session(), tokens, work) : work();
  return logits;
}

void LedSession::prepare(const Method& method) {
  const auto work = [&] { session_.prepare(method); };
  led_ ? led_.leader().prepare(led_.session(), work) : work();
}

void LedSession::step_together(std::span<const LedSession* const> sessions, std::span<Session::Step> steps) {
  if (steps.empty()) return;
  if (!sessions.front()->led_) return Session::step_together(steps);
  std::vector<std::int32_t> numbers, tokens;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    numbers.push_back(static_cast<std::int32_t>(sessions[i]->led_.session()));
    tokens.push_back(steps[i].token);
  }
  sessions.front()->led_.leader().step(numbers, tokens, [&] {
    Session::step_together(steps);
    for (const Session::Step& step : steps) {
      if (step.failure) std::rethrow_exception(step.failure);
    }
  });
}

LedSession open_saved_led(const std::shared_ptr<Leader>& leader, const std::string& context,
                          const std::function<Session()>& open) {
  if (!leader) return open();
  std::optional<Session> session;
  const std::uint32_t number = leader->open_saved(context, [&] { session.emplace(open()); });
  return {std::move(*session), Led(leader, number)};
}

Session open_saved(const ModelSource& source, offload::Arena& arena, const std::filesystem::path& path,
                   const SessionOptions& options, const SharedMethod& method) {
  const offload::Snapshot snapshot = open_over_ranks(options.peers(), path);
  Session session = open_context(source, arena, snapshot, options, method.get());
  session.set_method(with_column_recall(method, snapshot));
  return session;
}

}  // namespace hayloft::runtime::serve
