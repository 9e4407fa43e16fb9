#include <algorithm>
#include <new>
#include <utility>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/serve/engine.h"
#include "runtime/serve/job.h"

// The engine keeps what was read of prompts, and others go on from it.
namespace hayloft::runtime::serve {
namespace {

constexpr std::size_t kWorthKeeping = 32;  // tokens

}  // namespace

// Takes over the scores of the same prompt for a client that has left: the progress is this one's, read to the end or
// not.
bool Engine::take_over(const SharedJob& job) {
  const auto left = [&](const SharedJob& other) {
    return other->cancelled() && !other->context_replaced && other->scores_like(*job);
  };
  if (const auto found = std::ranges::find_if(active_, left); found != active_.end()) {
    job->take_over(**found);
    *found = job;
    ++own_.cancelled;
  } else if (const auto kept = std::ranges::find_if(left_, left); kept != left_.end()) {
    job->take_over(**kept);
    left_.erase(kept);
    active_.push_back(job);
  } else {
    return false;
  }
  own_.cached_tokens += static_cast<std::uint64_t>(job->usage().cached_tokens);
  return true;
}

// True where another request is reading what this one begins with: it attaches when that has been read.
bool Engine::must_wait(const Job& job, std::size_t cached) const {
  if (job.request().echo) return false;
  const auto chunk = static_cast<std::size_t>(options_.session.chunk_tokens);
  return std::ranges::any_of(active_, [&](const SharedJob& other) {
    if (!other->reading() || other->request().echo || other->context_replaced) return false;
    if (other->request().context != job.request().context) return false;
    return other->request().tokens == job.request().tokens ||
           common_prefix(other->request().tokens, job.request().tokens) >= cached + chunk;
  });
}

// Other answers to the same prompt go on from all that was read of it. What follows the last whole chunk was read in
// one piece, as each of them would read it.
void Engine::fork_for_copies(const Job& job) {
  if (job.request().echo || job.context_replaced || job.read() == 0) return;
  if (copies_wait(job)) keep_boundary(job);
}

// Drops what was kept for copies alone, inside a chunk, when the last of them has begun or has left: prompts that begin
// alike go on from whole chunks, to the bits of one that reads all itself.
void Engine::drop_for_copies(const Job& job) {
  const std::size_t read = job.to_read();
  const bool inside = read % static_cast<std::size_t>(options_.session.chunk_tokens) != 0;
  if (job.request().echo || !inside || copies_wait(job)) return;
  pool_.drop_unless_talked(job.request().context, std::span(job.request().tokens).first(read));
}

bool Engine::copies_wait(const Job& job) const {
  return std::ranges::any_of(waiting_, [&](const SharedJob& other) {
    return other.get() != &job && !other->request().echo && other->request().context == job.request().context &&
           other->request().tokens == job.request().tokens;
  });
}

void Engine::count_read_again(const GenerationRequest& request, std::size_t cached) {
  const auto chunk = static_cast<std::size_t>(options_.session.chunk_tokens);
  const ReadAgain again = history_.compare(request.context, request.tokens, cached, chunk);
  own_.read_again.chunk += again.chunk;
  own_.read_again.let_go += again.let_go;
  own_.read_again.changed += again.changed;
  history_.add(request.context, request.tokens);
}

// Saves whole chunks on the disk, where that is due.
void Engine::save_prompt(Job& job, bool now) {
  if (!job.saving || job.read() % static_cast<std::size_t>(options_.session.chunk_tokens) != 0) return;
  saved_.advance(job.saving, job.session().here(), std::span(job.request().tokens).first(job.read()), now);
}

// Of an answer that was made, the conversation that it belongs to goes on from where the next prompt parts from it.
SessionPool::Beginning Engine::kept_of(const GenerationRequest& request) {
  if (request.echo) return {};
  return pool_.longest(request.context, request.tokens, request.conversation > 0);
}

// Keeps the last whole chunk of the prompt: what begins like it and ends otherwise goes on from here, to the same bits
// as if it had read all itself.
void Engine::keep_boundary(const Job& job) {
  if (job.read() == 0 || job.context_replaced) return;
  keep(job.request().context, std::span(job.request().tokens).first(job.read()), [&] { return job.session().fork(); });
}

// Keeps the whole prompt of a conversation for its next turn, where the session cannot be cut back to it once it has
// gone on.
void Engine::keep_conversation(const Job& job) {
  const GenerationRequest& request = job.request();
  if (request.echo || request.conversation == 0 || job.context_replaced || job.read() < kWorthKeeping) return;
  if (job.session().here().rewindable()) return;
  keep(
      request.context, std::span(request.tokens).first(job.read()), [&] { return job.session().fork(); },
      request.conversation);
}

void Engine::keep_session(Job& job) {
  const std::vector<std::int32_t> tokens = job.session_tokens();
  if (job.request().echo || job.context_replaced || tokens.size() < kWorthKeeping) return;
  history_.add(job.request().context, tokens);
  // A prompt alone may end inside a chunk, from where no other goes on to the bit: its last whole chunk is kept
  // already.
  if (!job.reading() && job.request().conversation == 0 && tokens.size() <= job.request().tokens.size()) return;
  keep(
      job.request().context, tokens, [&] { return job.take_session(); },
      job.reading() ? 0 : job.request().conversation);
}

// Where there is no memory for it, nothing is kept: the request that it comes from goes on.
void Engine::keep(const std::string& context, std::span<const std::int32_t> tokens,
                  const std::function<LedSession()>& session, std::size_t conversation) {
  try {
    pool_.put(context, tokens, session(), conversation);
  } catch (const gpu::DeviceLost& error) {
    device_lost_ = error.what();
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace hayloft::runtime::serve
