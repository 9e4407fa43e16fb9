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
  // quota).
  explicit Threads(int count = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const;

  // Runs body(begin, end) over disjoint pieces of [0, n), each of at least `grain` items except the last. Returns when
  // all are done; the first exception thrown by a piece is rethrown.
  void parallel_for(std::int64_t n, std::int64_t grain,
                    const std::function<void(std::int64_t begin, std::int64_t end)>& body) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hayloft::offload
