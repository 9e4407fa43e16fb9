#include <algorithm>

#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/serve/engine.h"
#include "runtime/serve/held_memory.h"
#include "runtime/serve/job.h"

// The engine lets a request begin when memory holds it besides what runs and is kept, and drops what is kept for it.
namespace hayloft::runtime::serve {

bool Engine::tails_in_host() const {
  return source_.model.backend().memory().budget_bytes == 0;
}

std::uint64_t Engine::tail_of(std::int64_t tokens) const {
  return tails_in_host() ? whole_tail_of(tokens) : 0;
}

// Memory that the tails of a sequence take wherever they are, with what the model's head keeps of it.
std::uint64_t Engine::whole_tail_of(std::int64_t tokens) const {
  const Model* const head = source_.model.head();
  return tail_bytes(source_.model.config(), options_.session.cache, tokens, options_.session.chunk_tokens) +
         (head ? DraftHead::kept_bytes(*head, tokens) : 0);
}

// Memory of the host that a sequence of so many tokens takes in all.
std::uint64_t Engine::memory_of(std::int64_t tokens) const {
  return host_bytes(source_.model.config(), options_.session.cache, tokens) + tail_of(tokens);
}

// Returns what the blocks take by which a cache grows up to so many tokens.
std::uint64_t Engine::blocks_behind(const Cache& cache, std::int64_t tokens) const {
  const ModelConfig& config = source_.model.config();
  return host_bytes(config, cache.options(), std::max(tokens, cache.tokens())) -
         host_bytes(config, cache.options(), cache.tokens());
}

// Returns what a running request may yet take, besides what it holds.
std::uint64_t Engine::growth(const Job& job) const {
  const Cache& cache = job.session().cache();
  const std::int64_t tokens = job.usage().prompt_tokens + job.request().max_tokens;
  const std::uint64_t tail = tail_of(tokens);
  return blocks_behind(cache, tokens) + tail - std::min(tail, job.session().here().device_bytes());
}

// Returns the same of one that begins with what is kept: a tail of its own, and the blocks behind those.
std::uint64_t Engine::growth_behind(const Job& job, const SessionPool::Beginning& kept) const {
  std::int64_t tokens = static_cast<std::int64_t>(job.request().tokens.size()) + job.request().max_tokens;
  if (!kept.entry) return memory_of(tokens);
  const Cache& cache = kept.entry->session.cache();
  tokens += cache.tokens() - static_cast<std::int64_t>(kept.entry->tokens.size());  // of a saved context
  return blocks_behind(cache, tokens) + tail_of(tokens);
}

// The first rank holds the most blocks: what it counts for itself suffices for all.
std::uint64_t Engine::budget() const {
  return options_.host_bytes > 0 ? std::min(options_.host_bytes, arena_.budget_bytes()) : arena_.budget_bytes();
}

// Returns what the job, that goes on from `kept`, and all that run will hold at most, with those that have left and
// with everything else that is kept, where they are to be counted.
std::uint64_t Engine::needed(const Job& job, const SessionPool::Beginning& kept, bool with_left, bool with_pool) const {
  HeldMemory running(methods_);
  std::uint64_t bytes = growth_behind(job, kept);
  const auto count = [&](const std::vector<SharedJob>& jobs) {
    for (const SharedJob& other : jobs) {
      running.add(other->session());
      bytes += growth(*other);
    }
  };
  count(active_);
  if (with_left) count(left_);
  std::uint64_t tails = running.tail_bytes();
  if (with_pool) {
    bytes += pool_.held().host_bytes() - running.shared_host_bytes(pool_.held());
    tails += pool_.held().tail_bytes();
  } else if (kept.entry) {
    running.add(kept.entry->session);
  }
  return bytes + running.host_bytes() + (tails_in_host() ? tails : 0);
}

bool Engine::make_room(const Job& job) {
  const std::uint64_t budget = this->budget();
  const std::int64_t tokens = static_cast<std::int64_t>(job.request().tokens.size()) + job.request().max_tokens;
  if (memory_of(tokens) > budget) {
    fail_for_memory("keys and values of {} tokens take {}, and {} may be used, see --host-memory", tokens,
                    format_bytes(memory_of(tokens)), format_bytes(budget));
  }
  SessionPool::Beginning kept = kept_of(job.request());
  while (needed(job, kept, false, false) > budget) {  // the oldest of those that read for nobody first
    const auto oldest = std::ranges::find_if(active_, [&](const SharedJob& other) { return abandoned(*other); });
    if (oldest == active_.end()) break;
    give_up(*oldest);
    kept = kept_of(job.request());
  }
  while (!left_.empty() && needed(job, kept, true, false) > budget) left_.erase(left_.begin());
  while (needed(job, kept, true, true) > budget && pool_.drop_one(kept.entry)) {
  }
  const bool alone = active_.empty() && left_.empty();
  if (alone && kept.entry && needed(job, kept, true, true) > budget) {  // what it would go on from is read anew
    pool_.drop_one();
    kept = {};
  }
  const gpu::Backend& backend = source_.model.backend();
  if (backend.memory().budget_bytes > 0) {  // a device with memory of its own, where the tails are
    const std::uint64_t tail = whole_tail_of(tokens);
    while (backend.memory().used_bytes + tail > backend.memory().budget_bytes &&
           (pool_.drop_one(kept.entry) || pool_.drop_one())) {
    }
    kept = kept_of(job.request());
  }
  return alone || needed(job, kept, true, true) <= budget;
}

}  // namespace hayloft::runtime::serve
