#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace hayloft::offload {

// The one thread pool of a process (a TBB arena). Passed by reference to whatever runs in parallel; Faiss' OpenMP and
// BLAS threads are held at one per worker, so pools never multiply. Thread-safe; nested calls are allowed.
class Threads {
 public:
  // count: worker threads including the caller; 0 takes the processors this process may run on (affinity, cgroup
  // quota). More than there are processors are allowed. Throws Error when the system does not start so many.
  explicit Threads(int count = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const;

  // Runs body(begin, end) over the pieces [0, grain), [grain, 2 grain), ... of [0, n), the last of which may be
  // shorter. The pieces do not depend on count(), so a result merged piece by piece in order does not either; a piece
  // should be worth some microseconds. Returns when all are done. The first exception thrown by a piece is rethrown,
  // and pieces not yet begun are dropped. With one thread or one piece the caller runs everything itself.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hayloft::offload
