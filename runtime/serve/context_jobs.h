#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/context/ingest.h"
#include "runtime/serve/contexts.h"

namespace hayloft::runtime::serve {

// A text on its way to a saved context.
struct ContextProgress {
  std::string name;
  std::int64_t done = 0, total = 0;  // tokens; total 0: not begun
  std::string problem;               // why it was given up; empty: it goes on, or waits
};

// Reads texts into saved contexts, one after another, on a thread of its own beside the engine, with the same
// processors. Ended with the server, it leaves a checkpoint that the same text goes on from. Thread-safe.
class ContextJobs {
 public:
  ContextJobs(const ModelSource& source, offload::Arena& arena, const Contexts& contexts, SessionOptions session,
              std::function<void(const std::string& name)> replaced, std::size_t most_waiting = 16);
  ~ContextJobs();
  ContextJobs(const ContextJobs&) = delete;
  ContextJobs& operator=(const ContextJobs&) = delete;

  // Throws Error where the name is none, taken, or on its way already; false when too many wait.
  bool create(const std::string& name, std::string text);
  // True when it was on its way or had been given up. What was read of it goes, soon where it is being read now; what
  // another program has read of another text under this name stays. Throws Error where that cannot be removed.
  bool cancel(const std::string& name);
  std::vector<ContextProgress> progress() const;

 private:
  struct Waiting {
    std::string name;
    std::string text;
  };
  void run();
  std::string read(const Waiting& job);  // returns why it was given up
  void drop(const std::string& name) const;

  const ModelSource source_;
  offload::Arena& arena_;
  const Contexts& contexts_;
  const SessionOptions session_;
  const std::function<void(const std::string&)> replaced_;
  const std::size_t most_waiting_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;
  std::optional<ContextProgress> current_;
  std::deque<ContextProgress> given_up_;  // the newest few
  bool stop_current_ = false;
  bool drop_current_ = false;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace hayloft::runtime::serve
