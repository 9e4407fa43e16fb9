#include "offload/host/threads.h"

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "offload/error.h"
#include "offload/host/topology.h"

namespace hayloft::offload {

namespace {

// The library that runs the pool ends the process when a thread of its cannot be started. So see beforehand whether
// `count` more can be there at once.
void require_startable(int count) {
  std::mutex mutex;
  std::condition_variable over;
  bool done = false;
  std::vector<std::thread> started;
  started.reserve(static_cast<std::size_t>(count));
  std::error_code refused;
  while (static_cast<int>(started.size()) < count && !refused) {
    try {
      started.emplace_back([&] {
        std::unique_lock lock(mutex);
        over.wait(lock, [&] { return done; });
      });
    } catch (const std::system_error& error) {
      refused = error.code();
    }
  }
  {
    const std::lock_guard lock(mutex);
    done = true;
  }
  over.notify_all();
  const std::size_t most = started.size() + 1;  // the caller is one
  for (std::thread& thread : started) thread.join();
  if (refused) {
    fail(
        "--threads {}: the system starts no more than {} threads here: {}; raise the limit (ulimit -u, or pids of the "
        "cgroup) or lower --threads",
        count + 1, most, refused.message());
  }
}

}  // namespace

struct Threads::Impl {
  explicit Impl(int threads) : count(threads), arena(threads) {
    require_startable(count - 1);
    // TBB starts no more workers than there are processors unless it is told to.
    if (count > tbb::info::default_concurrency()) {
      more.emplace(tbb::global_control::max_allowed_parallelism, static_cast<std::size_t>(count));
    }
  }

  int count;
  std::optional<tbb::global_control> more;
  mutable tbb::task_arena arena;
};

Threads::Threads(int count) {
  if (count < 0) fail("--threads {}: cannot be negative", count);
  impl_ = std::make_unique<Impl>(count > 0 ? count : usable_processors());
}

Threads::~Threads() = default;

int Threads::count() const {
  return impl_->count;
}

void Threads::parallel_for(std::int64_t n, std::int64_t grain,
                           const std::function<void(std::int64_t begin, std::int64_t end)>& body) const {
  if (n <= 0) return;
  grain = std::clamp<std::int64_t>(grain, 1, n);
  const std::int64_t pieces = (n - 1) / grain + 1;
  const auto run = [&](std::int64_t piece) { body(piece * grain, std::min(n, (piece + 1) * grain)); };
  if (pieces == 1 || impl_->count == 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) run(piece);
    return;
  }
  impl_->arena.execute([&] {
    // Isolated: while a thread waits here it takes no pieces of an outer parallel_for, which could find its caller's
    // thread-local state or locks half-way.
    tbb::this_task_arena::isolate([&] {
      tbb::parallel_for(
          tbb::blocked_range<std::int64_t>(0, pieces, 1),
          [&](const tbb::blocked_range<std::int64_t>& range) {
            for (std::int64_t piece = range.begin(); piece != range.end(); ++piece) run(piece);
          },
          tbb::simple_partitioner{});
    });
  });
}

}  // namespace hayloft::offload
