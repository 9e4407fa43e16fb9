#include "runtime/serve/context_jobs.h"

#include <algorithm>
#include <utility>

#include "offload/error.h"
#include "runtime/serve/openai/room.h"

namespace hayloft::runtime::serve {
namespace {

constexpr std::size_t kRememberedFailures = 16;

struct Stopped : Error {
  using Error::Error;
};

}  // namespace

ContextJobs::ContextJobs(const ModelSource& source, offload::Arena& arena, const Contexts& contexts,
                         SessionOptions session, std::function<void(const std::string&)> replaced,
                         std::size_t most_waiting)
    : source_(source),
      arena_(arena),
      contexts_(contexts),
      session_(std::move(session)),
      replaced_(std::move(replaced)),
      most_waiting_(most_waiting),
      thread_([this] { run(); }) {}

ContextJobs::~ContextJobs() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = stop_current_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

bool ContextJobs::create(const std::string& name, std::string text) {
  if (contexts_.contains(name)) fail("there is a saved context \"{}\" already; remove it first", name);
  if (text.empty()) fail("the text is empty: there is nothing to read");
  {
    const std::lock_guard lock(mutex_);
    const bool on_its_way =
        (current_ && current_->name == name) || std::ranges::find(waiting_, name, &Waiting::name) != waiting_.end();
    if (on_its_way) fail("a context \"{}\" is being read already", name);
    if (waiting_.size() >= most_waiting_) return false;
    std::erase_if(given_up_, [&](const ContextProgress& each) { return each.name == name; });
    waiting_.push_back({name, std::move(text)});
  }
  wake_.notify_all();
  return true;
}

bool ContextJobs::cancel(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (current_ && current_->name == name) return stop_current_ = drop_current_ = true;
  if (std::erase_if(waiting_, [&](const Waiting& each) { return each.name == name; }) > 0) return true;
  const auto given_up = std::ranges::find(given_up_, name, &ContextProgress::name);
  if (given_up == given_up_.end()) return false;
  if (given_up->total > 0) drop(name);
  given_up_.erase(given_up);
  return true;
}

// The context may have become whole before it was to stop.
void ContextJobs::drop(const std::string& name) const {
  contexts_.remove_part(name);
  contexts_.remove(name);
}

std::vector<ContextProgress> ContextJobs::progress() const {
  const std::lock_guard lock(mutex_);
  std::vector<ContextProgress> all;
  if (current_) all.push_back(*current_);
  for (const Waiting& each : waiting_) all.push_back({each.name, 0, 0, {}});
  all.insert(all.end(), given_up_.begin(), given_up_.end());
  return all;
}

void ContextJobs::run() {
  for (;;) {
    Waiting job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return closed_ || !waiting_.empty(); });
      if (closed_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      current_ = ContextProgress{job.name, 0, 0, {}};
      stop_current_ = drop_current_ = false;
    }
    std::string problem = read(job);
    const std::lock_guard lock(mutex_);
    // Before the first word of its progress a part of this name is another program's.
    if (drop_current_ && current_->total > 0) {
      try {
        drop(job.name);
        problem.clear();
      } catch (const std::exception& error) {
        problem = error.what();
      }
    } else if (drop_current_) {
      problem.clear();
    }
    if (!problem.empty()) {
      current_->problem = problem;
      given_up_.push_front(*current_);
      if (given_up_.size() > kRememberedFailures) given_up_.pop_back();
    }
    current_.reset();
  }
}

std::string ContextJobs::read(const Waiting& job) {
  IngestOptions options;
  options.session = session_;
  options.planned = [&](const SessionOptions&, std::int64_t tokens, std::int64_t, int) {
    openai::require_room_behind(source_.model.config(), tokens);
  };
  try {
    ingest(source_, arena_, job.text, contexts_.path(job.name), options, [&](std::int64_t done, std::int64_t total) {
      const std::lock_guard lock(mutex_);
      current_->done = done;
      current_->total = total;
      if (stop_current_) throw Stopped("stopped; the same text goes on from here");
    });
    replaced_(job.name);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace hayloft::runtime::serve
