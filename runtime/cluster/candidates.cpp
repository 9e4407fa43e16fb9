#include "runtime/cluster/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace hayloft::runtime::cluster {
namespace {

struct Found {
  float score;
  std::int32_t position;
  int rank;
  int at;  // in that rank's list
};

bool better(const Found& a, const Found& b) {
  const bool a_number = !std::isnan(a.score), b_number = !std::isnan(b.score);
  if (a_number != b_number) return a_number;
  if (a_number && a.score != b.score) return a.score > b.score;
  return a.position < b.position;
}

// What came of all ranks: of each positions [lists][k], then logits [lists][heads][k], then its note.
class Gathered {
 public:
  Gathered(Communicator& ranks, const Candidates& own, std::span<const float> note)
      : heads_(own.heads),
        k_(own.k),
        positions_(own.positions.size()),
        note_(positions_ + own.logits.size()),
        size_(note_ + note.size()) {
    std::vector<std::uint32_t> packet(size_);
    const std::span bytes = std::as_writable_bytes(std::span(packet));
    std::ranges::copy(std::as_bytes(std::span(own.positions)), bytes.begin());
    std::ranges::copy(std::as_bytes(std::span(own.logits)), bytes.subspan(positions_ * sizeof(float)).begin());
    std::ranges::copy(std::as_bytes(note), bytes.subspan(note_ * sizeof(float)).begin());
    all_.resize(size_ * static_cast<std::size_t>(ranks.ranks()));
    ranks.all_gather(Traffic::candidates, std::as_bytes(std::span(packet)), std::as_writable_bytes(std::span(all_)));
  }

  std::int32_t position(int rank, int list, int at) const {
    return static_cast<std::int32_t>(all_[of(rank) + index(list, at)]);
  }
  float logit(int rank, int list, int head, int at) const {
    return std::bit_cast<float>(all_[of(rank) + positions_ + index(list * heads_ + head, at)]);
  }
  void append_note(int rank, std::vector<float>& notes) const {
    for (std::size_t i = note_; i < size_; ++i) notes.push_back(std::bit_cast<float>(all_[of(rank) + i]));
  }

 private:
  std::size_t of(int rank) const { return static_cast<std::size_t>(rank) * size_; }
  std::size_t index(int row, int at) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(k_) + static_cast<std::size_t>(at);
  }

  int heads_;
  int k_;
  std::size_t positions_;
  std::size_t note_;
  std::size_t size_;
  std::vector<std::uint32_t> all_;
};

}  // namespace

Candidates best_of_all(Communicator& ranks, const Candidates& own, const Score& score, const offload::Threads& threads,
                       std::span<const float> note, std::vector<float>* notes) {
  const Gathered all(ranks, own, note);
  for (int rank = 0; notes != nullptr && rank < ranks.ranks(); ++rank) all.append_note(rank, *notes);
  Candidates best(own.lists, own.heads, own.k);
  threads.parallel_for(own.lists, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Found> found;
    std::vector<float> logits(static_cast<std::size_t>(own.heads));
    for (int list = static_cast<int>(begin); list < end; ++list) {
      found.clear();
      for (int rank = 0; rank < ranks.ranks(); ++rank) {
        for (int at = 0; at < own.k && all.position(rank, list, at) >= 0; ++at) {
          for (int head = 0; head < own.heads; ++head) {
            logits[static_cast<std::size_t>(head)] = all.logit(rank, list, head, at);
          }
          found.push_back({score(list, logits), all.position(rank, list, at), rank, at});
        }
      }
      const std::size_t k = std::min(static_cast<std::size_t>(own.k), found.size());
      std::nth_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(k), found.end(), better);
      found.resize(k);
      std::ranges::sort(found, {}, &Found::position);
      for (std::size_t i = 0; i < k; ++i) {
        const std::size_t row = static_cast<std::size_t>(own.k);
        best.positions[static_cast<std::size_t>(list) * row + i] = found[i].position;
        for (int head = 0; head < own.heads; ++head) {
          best.logits[static_cast<std::size_t>(list * own.heads + head) * row + i] =
              all.logit(found[i].rank, list, head, found[i].at);
        }
      }
    }
  });
  return best;
}

}  // namespace hayloft::runtime::cluster
