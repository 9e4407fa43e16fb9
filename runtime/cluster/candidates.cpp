#include "runtime/cluster/candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

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

}  // namespace

GatheredCandidates::GatheredCandidates(Communicator& ranks, const Candidates& own, std::span<const float> note)
    : ranks_(ranks.ranks()),
      lists_(own.lists),
      heads_(own.heads),
      k_(own.k),
      logits_(own.positions.size()),
      note_(logits_ + own.logits.size()),
      size_(note_ + note.size()),
      all_(size_ * static_cast<std::size_t>(ranks_)) {
  std::vector<std::uint32_t> packet(size_);
  const std::span bytes = std::as_writable_bytes(std::span(packet));
  std::ranges::copy(std::as_bytes(std::span(own.positions)), bytes.begin());
  std::ranges::copy(std::as_bytes(std::span(own.logits)), bytes.subspan(logits_ * sizeof(float)).begin());
  std::ranges::copy(std::as_bytes(note), bytes.subspan(note_ * sizeof(float)).begin());
  ranks.all_gather(Traffic::candidates, std::as_bytes(std::span(packet)), std::as_writable_bytes(std::span(all_)));
}

std::int32_t GatheredCandidates::position(int rank, int list, int at) const {
  return static_cast<std::int32_t>(all_[of(rank) + static_cast<std::size_t>(list * k_ + at)]);
}

float GatheredCandidates::logit(int rank, int list, int head, int at) const {
  const auto row = static_cast<std::size_t>(list * heads_ + head);
  return std::bit_cast<float>(
      all_[of(rank) + logits_ + row * static_cast<std::size_t>(k_) + static_cast<std::size_t>(at)]);
}

void GatheredCandidates::take_logits(int rank, int list, int at, std::span<float> logits) const {
  for (int head = 0; head < heads_; ++head) logits[static_cast<std::size_t>(head)] = logit(rank, list, head, at);
}

std::span<const float> GatheredCandidates::note(int rank) const {
  return {reinterpret_cast<const float*>(all_.data() + of(rank) + note_), size_ - note_};
}

float GatheredCandidates::least(int rank, int list, const Score& score) const {
  std::vector<float> logits(static_cast<std::size_t>(heads_));
  float least = std::numeric_limits<float>::infinity();
  for (int at = 0; at < k_ && position(rank, list, at) >= 0; ++at) {
    take_logits(rank, list, at, logits);
    const float one = score(list, logits);
    if (!(one >= least)) least = one;
  }
  return least;
}

Candidates GatheredCandidates::best(int k, const Score& score, const offload::Threads& threads) const {
  Candidates best(lists_, heads_, k);
  threads.parallel_for(lists_, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Found> found;
    std::vector<float> logits(static_cast<std::size_t>(heads_));
    for (int list = static_cast<int>(begin); list < end; ++list) {
      found.clear();
      for (int rank = 0; rank < ranks_; ++rank) {
        for (int at = 0; at < k_ && position(rank, list, at) >= 0; ++at) {
          take_logits(rank, list, at, logits);
          found.push_back({score(list, logits), position(rank, list, at), rank, at});
        }
      }
      const std::size_t size = std::min(static_cast<std::size_t>(k), found.size());
      std::nth_element(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(size), found.end(), better);
      found.resize(size);
      std::ranges::sort(found, {}, &Found::position);
      const auto row = static_cast<std::size_t>(k);
      for (std::size_t i = 0; i < size; ++i) {
        best.positions[static_cast<std::size_t>(list) * row + i] = found[i].position;
        for (int head = 0; head < heads_; ++head) {
          best.logits[static_cast<std::size_t>(list * heads_ + head) * row + i] =
              logit(found[i].rank, list, head, found[i].at);
        }
      }
    }
  });
  return best;
}

}  // namespace hayloft::runtime::cluster
