#include <algorithm>
#include <new>
#include <optional>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/serve/engine.h"
#include "runtime/serve/job.h"

// One turn of the engine: a token of every answer, a chunk of one prompt.
namespace hayloft::runtime::serve {
namespace {

constexpr std::size_t kMostLeft = 4;  // scored, or being read, for nobody

}  // namespace

void Engine::remove(const SharedJob& job) {
  saved_.release(job->saving);
  std::erase(active_, job);
  if (!job->scored_for_nobody()) return;
  left_.push_back(job);
  if (left_.size() > kMostLeft) left_.erase(left_.begin());
}

bool Engine::fails(Job& job, const std::function<void()>& part) {
  try {
    part();
    return false;
  } catch (const std::bad_alloc&) {
    fail_job(job, 507, "the system has no memory left for this request");
  } catch (const gpu::DeviceLost& error) {
    device_lost_ = error.what();
    fail_job(job, 503, error.what());
  } catch (const grammar::GrammarLimit& error) {
    fail_job(job, 400, error.what());
  } catch (const NothingToDraw& error) {
    fail_job(job, 400, error.what());
  } catch (const std::exception& error) {
    fail_job(job, 500, error.what());
  }
  return true;
}

bool Engine::abandoned(const Job& job) const {
  return job.cancelled() && job.reading() && job.to_read() >= options_.kept_reading;
}

int Engine::places_taken() const {
  return static_cast<int>(std::ranges::count_if(active_, [&](const SharedJob& job) { return !abandoned(*job); }));
}

void Engine::give_up(SharedJob job) {
  fails(*job, [&] { keep_session(*job); });
  ++own_.cancelled;
  remove(job);
}

void Engine::end_those_left() {
  const auto left_waiting =
      std::stable_partition(waiting_.begin(), waiting_.end(), [](const SharedJob& job) { return !job->cancelled(); });
  const std::vector<SharedJob> left(left_waiting, waiting_.end());
  waiting_.erase(left_waiting, waiting_.end());
  own_.cancelled += left.size();
  for (const SharedJob& job : left) drop_for_copies(*job);
  std::vector<SharedJob> gone;
  std::vector<SharedJob> going_on;
  for (const SharedJob& job : active_) {
    if (!job->cancelled() || !job->reading()) continue;
    (abandoned(*job) ? going_on : gone).push_back(job);
  }
  for (std::size_t i = 0; i + kMostLeft < going_on.size(); ++i) gone.push_back(going_on[i]);
  for (const SharedJob& job : gone) give_up(job);
}

// It then goes on from there, by what is kept.
void Engine::hand_over_to(const Job& job) {
  if (job.request().echo) return;
  const auto chunk = static_cast<std::size_t>(options_.session.chunk_tokens);
  std::vector<SharedJob> same;
  for (const SharedJob& other : active_) {
    if (abandoned(*other) && !other->request().echo && other->request().context == job.request().context &&
        common_prefix(other->request().tokens, job.request().tokens) >= chunk) {
      same.push_back(other);
    }
  }
  for (const SharedJob& other : same) give_up(other);
}

bool Engine::left(Job& job) {
  if (!job.cancelled() || abandoned(job)) return false;
  ++own_.cancelled;
  keep_session(job);
  return true;
}

bool Engine::read_on(Job& job) {
  bool ended = false;
  const bool failed = fails(job, [&] {
    ended = left(job);
    if (ended) return;
    const auto chunk = static_cast<std::size_t>(options_.session.chunk_tokens);
    const std::size_t before = job.read();
    job.read_chunk(chunk, job.usage().prompt_tokens - static_cast<std::int64_t>(job.request().tokens.size()));
    own_.prompt_tokens += job.read() - before;
    save_prompt(job, false);
    if (!job.request().echo && job.read() == job.to_read() / chunk * chunk) keep_boundary(job);
    if (!job.reading()) {
      fork_for_copies(job);
      keep_conversation(job);
    }
  });
  return ended || failed;
}

std::vector<Engine::SharedJob> Engine::decode(const std::vector<SharedJob>& answers) {
  struct Turn {
    SharedJob job;
    Counters before;
    std::optional<std::size_t> step;  // of `steps`; none: it goes on without one
    std::optional<bool> passed = {};  // it was decoded by drafts; true: to its end
  };
  std::vector<SharedJob> ended;
  std::vector<Turn> turns;
  std::vector<Session::Step> steps;
  std::vector<const LedSession*> sessions;  // of the steps
  for (const SharedJob& job : answers) {
    bool gone = false;
    const bool failed = fails(*job, [&] {
      gone = left(*job);
      if (gone) return;
      turns.push_back({job, job->session().here().counters(), std::nullopt});
      const bool pays = !options_.drafts_for_one || (answers.size() == 1 && job->usage().completion_tokens > 8);
      if (options_.drafts && pays && job->drafts_alone()) {
        const DraftFigures before = job->draft_figures();
        turns.back().passed = job->decode_pass(*options_.method, *options_.drafts);
        own_.drafts += job->draft_figures() - before;
        return;
      }
      if (std::optional<Session::Step> step = job->begin_step(*options_.method)) {
        turns.back().step = steps.size();
        steps.push_back(std::move(*step));
        sessions.push_back(&job->session());
      }
    });
    if (failed && !turns.empty() && turns.back().job == job) turns.pop_back();
    if (gone || failed) ended.push_back(job);
  }
  try {
    LedSession::step_together(sessions, steps);
  } catch (...) {  // before any of them
    for (Session::Step& step : steps) step.failure = std::current_exception();
  }
  for (const Turn& turn : turns) {
    Job& job = *turn.job;
    bool finished = false;
    const bool failed = fails(
        job, [&] { finished = turn.passed ? *turn.passed : job.end_step(turn.step ? &steps[*turn.step] : nullptr); });
    if (failed) {
      ended.push_back(turn.job);
      continue;
    }
    const Counters& now = job.session().here().counters();
    for (std::size_t place = 0; place < place_count; ++place) {
      for (std::size_t kind = 0; kind < kind_count; ++kind) {
        own_.counters.bytes[place][kind] += now.bytes[place][kind] - turn.before.bytes[place][kind];
      }
    }
    own_.counters.rows_fetched += now.rows_fetched - turn.before.rows_fetched;
    own_.counters.ahead_used += now.ahead_used - turn.before.ahead_used;
    own_.counters.ahead_fetched += now.ahead_fetched - turn.before.ahead_fetched;
    if (!finished) continue;
    ++own_.finished;
    own_.generated_tokens += static_cast<std::uint64_t>(job.usage().completion_tokens);
    publish();  // first, so that who has the answer finds it counted
    fails(job, [&] { job.tell_end(); });
    fails(job, [&] { keep_session(job); });
    ended.push_back(turn.job);
  }
  return ended;
}

}  // namespace hayloft::runtime::serve
