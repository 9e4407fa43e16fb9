#include "runtime/serve/engine.h"

#include <algorithm>
#include <new>
#include <utility>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/context/hot_context.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime::serve {
namespace {

std::vector<SharedMethod> methods_of(const EngineOptions& options, const ModelConfig& config) {
  std::vector<SharedMethod> methods{options.method};
  if (options.drafts && options.drafts->self) methods.push_back(make_method(*options.drafts->self, config.head_dim));
  return methods;
}

}  // namespace

Engine::Engine(const ModelSource& source, offload::Arena& arena, const Contexts& contexts, EngineOptions options)
    : source_(source),
      arena_(arena),
      contexts_(contexts),
      options_(std::move(options)),
      leader_(make_leader(options_.session.peers(), options_.lost)),
      methods_(methods_of(options_, source_.model.config())),
      saved_(source_, arena_, options_.session, options_.method, options_.saved),
      thread_([this] { run(); }) {}

void Engine::close() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = closed_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<Job> Engine::submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener) {
  const auto tokens = static_cast<std::int64_t>(request.tokens.size());
  if (tokens == 0) fail("the prompt is empty: there is nothing to go on from");
  const int vocab = source_.model.config().vocab_size;
  for (const std::int32_t token : request.tokens) {
    if (token < 0 || token >= vocab) fail("token {} of the prompt: the model has tokens 0 to {}", token, vocab - 1);
  }
  if (options_.longest > 0 && tokens + request.max_tokens > options_.longest) {
    fail("the prompt's {} tokens and {} to generate are {}: this server takes {}, see --ctx-size", tokens,
         request.max_tokens, tokens + request.max_tokens, options_.longest);
  }
  if (leader_ && request.audit) fail("an audit holds steps against all keys, and here ranks have a part of them each");
  const std::shared_ptr<grammar::Constraint> constraint = request.constraint;
  std::vector<std::int32_t> ends = request.stop_tokens;
  if (!request.ignore_end) {
    const std::vector<std::int32_t>& own = source_.model.config().eos_tokens;
    ends.insert(ends.end(), own.begin(), own.end());
  }
  auto job = std::make_shared<Job>(std::move(request), std::move(listener), source_.model, source_.tokenizer);
  job->hold_to(constraint ? constraint->begin(source_.tokenizer, vocabulary(), std::move(ends)) : nullptr);
  {
    const std::lock_guard lock(mutex_);
    ++figures_.requests;
    if (stopping_ || static_cast<int>(arrived_.size()) + figures_.waiting >= options_.queue) {
      ++figures_.refused;
      return nullptr;
    }
    arrived_.push_back(job);
  }
  wake_.notify_all();
  return job;
}

const grammar::Vocabulary& Engine::vocabulary() {
  std::call_once(vocabulary_made_, [&] { vocabulary_ = std::make_unique<grammar::Vocabulary>(source_.tokenizer); });
  return *vocabulary_;
}

void Engine::forget_context(const std::string& name, const std::function<void()>& change) {
  if (change) change();  // first: what is opened until it has ended goes as well
  {
    const std::lock_guard lock(mutex_);
    forgotten_.push_back(name);
  }
  wake_.notify_all();
}

void Engine::stop_admitting() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
}

bool Engine::idle() const {
  const std::lock_guard lock(mutex_);
  return arrived_.empty() && figures_.waiting == 0 && figures_.active == 0;
}

bool Engine::stopping() const {
  const std::lock_guard lock(mutex_);
  return stopping_;
}

EngineFigures Engine::figures() const {
  const std::lock_guard lock(mutex_);
  return figures_;
}

void Engine::run() {
  for (;;) {
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] {
        return closed_ || !arrived_.empty() || !forgotten_.empty() || !active_.empty() || !waiting_.empty();
      });
      if (closed_) break;
      stopping = stopping_;
      for (SharedJob& job : arrived_) waiting_.push_back(std::move(job));
      arrived_.clear();
      figures_.waiting = static_cast<int>(waiting_.size());  // idle() and the bound of the queue count them at once
      for (const std::string& name : std::exchange(forgotten_, {})) let_go(name);
    }
    if (stopping) {
      const std::string why = device_lost_.empty() ? "the server is stopping" : device_lost_;
      for (const SharedJob& job : std::exchange(waiting_, {})) fail_job(*job, 503, why);
    }
    end_those_left();
    admit();
    count_places();
    // One step for every answer, one chunk for one of the prompts; for one that nobody waits for, where there is
    // nothing else to do.
    std::vector<SharedJob> answers;
    std::vector<SharedJob> readers;
    const bool idle = waiting_.empty() && places_taken() == 0;
    for (const SharedJob& job : active_) {
      if (abandoned(*job) && !idle) continue;
      (job->reading() ? readers : answers).push_back(job);
    }
    for (const SharedJob& job : decode(answers)) remove(job);
    if (!readers.empty()) {
      const SharedJob reader = readers[next_reader_++ % readers.size()];
      if (read_on(*reader)) remove(reader);
    }
    const bool lost = !device_lost_.empty() && !stopping;
    if (lost) end_on_lost_device();
    publish();
    if (lost && options_.device_lost) options_.device_lost(device_lost_);
  }
  for (const SharedJob& job : active_) {
    save_prompt(*job, true);
    saved_.release(job->saving);
    fail_job(*job, 503, "the server is stopping");
  }
  for (const SharedJob& job : waiting_) fail_job(*job, 503, "the server is stopping");
  active_.clear();
  left_.clear();
  waiting_.clear();
  keep_hot_contexts();
  if (leader_) leader_->leave();
  const std::lock_guard lock(mutex_);
  for (const SharedJob& job : arrived_) fail_job(*job, 503, "the server is stopping");
}

void Engine::keep_hot_contexts() const {
  for (const auto& [context, stamp] : opened_) {
    const Session* const session = pool_.of_context(context);
    if (session == nullptr || stamp != contexts_.stamp(context)) continue;
    try {
      keep_hot(*session, source_.model.backend(), offload::Snapshot::open(contexts_.path(context)));
    } catch (const std::exception&) {  // gone meanwhile, or nothing can be written there: the next is slower to start
    }
  }
}

void Engine::let_go(const std::string& context) {
  pool_.drop_context(context);
  for (const auto* jobs : {&active_, &left_}) {
    for (const SharedJob& job : *jobs) job->context_replaced |= job->request().context == context;
  }
}

// An answer is of the file that is there when it begins: one that goes on from an earlier file would not say so.
void Engine::forget_if_changed(const std::string& context) {
  const auto opened = opened_.find(context);
  if (opened == opened_.end() || opened->second == contexts_.stamp(context)) return;
  opened_.erase(opened);
  let_go(context);
}

void Engine::admit() {
  for (auto at = waiting_.begin(); at != waiting_.end() && places_taken() < options_.parallel;) {
    const SharedJob job = *at;
    forget_if_changed(job->request().context);
    hand_over_to(*job);
    if (must_wait(*job, kept_of(job->request()).tokens)) {  // others may go before it
      ++at;
      continue;
    }
    try {
      if (take_over(job)) {
        at = waiting_.erase(at);
        continue;
      }
      if (!make_room(*job)) return;  // the first in the queue waits for memory, and the others behind it
      start(job);
      active_.push_back(job);
    } catch (const gpu::DeviceLost& error) {
      device_lost_ = error.what();
      fail_job(*job, 503, error.what());
    } catch (const Error& error) {
      fail_job(*job, status_of_refusal(job->request().context, error), error.what());
    } catch (const std::bad_alloc&) {
      fail_job(*job, 507, "the system has no memory left for this request");
    }
    at = waiting_.erase(at);
  }
}

int Engine::status_of_refusal(const std::string& context, const Error& error) const {
  constexpr int no_memory = 507;
  if (context.empty() || dynamic_cast<const NoMemory*>(&error)) return no_memory;
  try {
    if (!contexts_.contains(context)) return 404;
    const auto opened = opened_.find(context);
    if (opened != opened_.end() && opened->second != contexts_.stamp(context)) return 503;
  } catch (const Error&) {  // no name
  }
  // A rank that lacks anything, be it memory, is told of by a SharedError.
  return dynamic_cast<const cluster::SharedError*>(&error) ? no_memory : 400;
}

LedSession Engine::opened(const std::string& context) {
  const std::filesystem::path path = contexts_.path(context);
  opened_.insert_or_assign(context, contexts_.stamp(context));  // first: what is written meanwhile counts as a change
  LedSession opened = open_saved_led(
      leader_, context, [&] { return open_saved(source_, arena_, path, options_.session, options_.method); });
  opened.set_opened(!options_.session.cache.copy_saved);
  return opened;
}

void Engine::start(const SharedJob& job) {
  const GenerationRequest& request = job->request();
  if (!request.echo) {
    const SessionPool::Beginning kept = kept_of(request);
    if (request.context.empty() && saved_.longest(request.tokens) > kept.tokens) {
      if (std::optional<Session> opened = saved_.open(request.tokens)) {
        LedSession session(std::move(*opened));
        session.set_opened(!options_.session.cache.copy_saved);
        const auto read = static_cast<std::size_t>(session.tokens());
        keep("", std::span(request.tokens).first(read), [&] { return session.fork(); });
        return begin(*job, std::move(session), 0, read);
      }
    }
    if (kept.entry) {
      const std::size_t read = kept.tokens;
      LedSession session = kept.fork();
      const std::int64_t context_tokens = session.tokens() - static_cast<std::int64_t>(read);
      begin(*job, std::move(session), context_tokens, read);
      return drop_for_copies(*job);
    }
  }
  if (!request.context.empty()) {
    LedSession session = opened(request.context);
    const std::int64_t context_tokens = session.tokens();
    if (!request.echo) keep(request.context, {}, [&] { return session.fork(); });
    return begin(*job, std::move(session), context_tokens, 0);
  }
  begin(*job, LedSession::open(leader_, source_, arena_, options_.session, options_.method), 0, 0);
}

void Engine::begin(Job& job, LedSession session, std::int64_t context_tokens, std::size_t read) {
  const GenerationRequest& request = job.request();
  session.here().share_workspace(workspace_);
  job.start(std::move(session), context_tokens, read);
  own_.cached_tokens += static_cast<std::uint64_t>(job.usage().cached_tokens);
  if (!request.echo) count_read_again(request, read);
  if (request.context.empty() && !request.echo) job.saving = saved_.begin(request.tokens, read);
  // Now: it may be replaced or removed while the answer is made.
  const bool wants_text = request.audit && (request.quotes > 0 || request.map > 0);
  if (!request.context.empty() && (wants_text || job.reads_prompt() || options_.drafts)) {
    job.text_of_context = offload::Snapshot::open(contexts_.path(request.context)).tokens();
    if (opened_[request.context] != contexts_.stamp(request.context)) {
      fail("the saved context \"{}\" was replaced while the answer to it began; ask again", request.context);
    }
  }
}

void Engine::fail_job(Job& job, int status, const std::string& message) {
  ++own_.failed;
  job.listener().failed({status, message});
}

// No call to the device succeeds any more, so nothing goes on, and what would come only waited for nothing.
void Engine::end_on_lost_device() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (const SharedJob& job : std::exchange(active_, {})) {
    saved_.release(job->saving);
    fail_job(*job, 503, device_lost_);
  }
  for (const SharedJob& job : std::exchange(waiting_, {})) fail_job(*job, 503, device_lost_);
  left_.clear();
}

// A place that has become free while this round lasts is free at once.
void Engine::count_places() {
  const std::lock_guard lock(mutex_);
  figures_.waiting = static_cast<int>(waiting_.size());
  figures_.active = static_cast<int>(active_.size());
}

void Engine::publish() {
  own_.kept_sessions = static_cast<int>(pool_.size());
  own_.kept_bytes = pool_.bytes();
  own_.saved = saved_.figures();
  own_.experts = source_.model.expert_traffic();
  const std::lock_guard lock(mutex_);
  const auto [requests, refused] = std::pair(figures_.requests, figures_.refused);
  figures_ = own_;
  figures_.requests = requests;
  figures_.refused = refused;
  figures_.waiting = static_cast<int>(waiting_.size());
  figures_.active = static_cast<int>(active_.size());
  figures_.host_bytes = arena_.used_bytes();
  figures_.host_budget = budget();
}

}  // namespace hayloft::runtime::serve
