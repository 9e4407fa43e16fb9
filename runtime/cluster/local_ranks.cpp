#include "runtime/cluster/local_ranks.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/error.h"

namespace hayloft::runtime::cluster {
namespace {

// The place where the ranks meet. A call is two meetings: all have given what they give, all have taken what they take.
class MeetingPlace {
 public:
  explicit MeetingPlace(int ranks) : ranks_(ranks), given_(static_cast<std::size_t>(ranks)) {}

  void give(int rank, std::span<std::byte> data) {
    given_[static_cast<std::size_t>(rank)] = data;
    meet();
  }
  std::span<std::byte> given(int rank) const { return given_[static_cast<std::size_t>(rank)]; }

  void meet() {
    std::unique_lock lock(mutex_);
    const int meeting = meeting_;
    if (lost_ < 0 && ++present_ == ranks_) {
      present_ = 0;
      ++meeting_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return meeting_ != meeting || lost_ >= 0; });
    if (meeting_ == meeting) fail("rank {} is lost: the run ends", lost_);
  }

  // Keeps, of several, the one that was lost first.
  void lose(int rank, std::exception_ptr why) {
    const std::scoped_lock lock(mutex_);
    if (lost_ >= 0) return;
    lost_ = rank;
    why_ = std::move(why);
    changed_.notify_all();
  }
  const std::exception_ptr& why() const { return why_; }

  int ranks() const { return ranks_; }

 private:
  int ranks_;
  std::vector<std::span<std::byte>> given_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int present_ = 0;
  int meeting_ = 0;
  int lost_ = -1;
  std::exception_ptr why_;
};

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(MeetingPlace& place, int rank) : place_(place), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return place_.ranks(); }

 protected:
  void gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    std::ranges::copy(own, all.begin() + rank_ * static_cast<std::ptrdiff_t>(own.size()));
    place_.give(rank_, all);
    for (int other = 0; other < ranks(); ++other) {
      if (other == rank_) continue;
      const auto theirs = place_.given(other).subspan(static_cast<std::size_t>(other) * own.size(), own.size());
      std::ranges::copy(theirs, all.begin() + other * static_cast<std::ptrdiff_t>(own.size()));
    }
    place_.meet();
  }
  void cast(std::span<std::byte> data) override {
    place_.give(rank_, data);
    if (rank_ > 0) std::ranges::copy(place_.given(0), data.begin());
    place_.meet();
  }

 private:
  MeetingPlace& place_;
  int rank_;
};

}  // namespace

void run_local_ranks(int ranks, const std::function<void(Communicator& communicator)>& work) {
  MeetingPlace place(ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      LocalCommunicator communicator(place, rank);
      try {
        work(communicator);
      } catch (...) {
        place.lose(rank, std::current_exception());
      }
    });
  }
  threads.clear();  // joins
  if (place.why()) std::rethrow_exception(place.why());
}

}  // namespace hayloft::runtime::cluster
