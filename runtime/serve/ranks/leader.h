#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "runtime/peers/communicator.h"
#include "runtime/serve/ranks/script.h"

namespace hayloft::runtime::serve {

// The first rank's word to the others, which follow() it: they do with their sessions what it does with its own. What
// computes nothing is told with the next that does. For the engine's thread, but for drop().
class Leader {
 public:
  // An error while ranks compute together leaves them apart: `lost` is told of it, ends all of them and does not
  // return.
  using Lost = std::function<void(const std::string& problem)>;
  Leader(cluster::Communicator& ranks, Lost lost) : ranks_(ranks), lost_(std::move(lost)) {}

  std::uint32_t open();                    // the number of a session that has been opened here
  std::uint32_t fork(std::uint32_t from);  // likewise
  void drop(std::uint32_t session);        // from any thread

  // The others do it with their sessions while `work` does it here.
  void append(std::uint32_t session, std::span<const std::int32_t> tokens, bool more_follows,
              const std::function<void()>& work);
  void score(std::uint32_t session, std::span<const std::int32_t> tokens, const std::function<void()>& work);
  void prepare(std::uint32_t session, const std::function<void()>& work);
  void step(std::span<const std::int32_t> sessions, std::span<const std::int32_t> tokens,
            const std::function<void()>& work);
  // Whatever `work` throws as a SharedError is thrown on all ranks: there is no such session, and nothing is lost.
  std::uint32_t open_saved(const std::string& context, const std::function<void()>& work);

  void leave();  // the others end; nothing is told afterwards

 private:
  template <class... What>
  void add(const What&... what);
  void together(const std::function<void()>& work);

  cluster::Communicator& ranks_;
  const Lost lost_;
  std::uint32_t last_ = 0;  // session
  std::mutex mutex_;        // of the script
  Script script_;
};

// Returns the leader of several ranks; null where there are no others to lead.
std::shared_ptr<Leader> make_leader(cluster::Communicator& ranks, const Leader::Lost& lost);

// One session's number; the others let theirs go with it. Empty: there are no others.
class Led {
 public:
  Led() = default;
  Led(std::shared_ptr<Leader> leader, std::uint32_t session) : leader_(std::move(leader)), session_(session) {}
  Led(Led&& other) noexcept : leader_(std::move(other.leader_)), session_(other.session_) {}
  Led& operator=(Led&& other) noexcept {
    std::swap(leader_, other.leader_);
    std::swap(session_, other.session_);
    return *this;
  }
  ~Led() {
    if (leader_) leader_->drop(session_);
  }

  explicit operator bool() const { return leader_ != nullptr; }
  Leader& leader() const { return *leader_; }
  const std::shared_ptr<Leader>& shared() const { return leader_; }
  std::uint32_t session() const { return session_; }

 private:
  std::shared_ptr<Leader> leader_;
  std::uint32_t session_ = 0;
};

}  // namespace hayloft::runtime::serve
