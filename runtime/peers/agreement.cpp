#include "runtime/peers/agreement.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace hayloft::runtime::cluster {
namespace {

// An outcome of one rank: empty, or its message as far as there is room.
struct Outcome {
  std::uint8_t failed = 0;
  char message[511] = {};

  bool operator==(const Outcome& other) const {
    return failed == other.failed && std::strcmp(message, other.message) == 0;
  }
};

template <class T>
std::vector<T> gathered(Communicator& ranks, std::span<const T> own) {
  std::vector<T> all(own.size() * static_cast<std::size_t>(ranks.ranks()));
  ranks.all_gather(Traffic::start, std::as_bytes(own), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

void together(Communicator& ranks, const std::function<void()>& work) {
  if (!ranks.several()) return work();
  Outcome own;
  try {
    work();
  } catch (const Error& error) {
    own.failed = 1;
    std::strncpy(own.message, error.what(), sizeof own.message - 1);
  }
  const std::vector<Outcome> all = gathered(ranks, std::span<const Outcome>(&own, 1));
  const auto failed = std::ranges::find(all, 1, &Outcome::failed);
  if (failed == all.end()) return;
  const bool everywhere = std::ranges::all_of(all, [&](const Outcome& other) { return other == all.front(); });
  if (everywhere) throw SharedError(failed->message);
  throw SharedError(fmt::format("rank {}: {}", failed - all.begin(), failed->message));
}

std::vector<double> summed(Communicator& ranks, const std::vector<double>& own) {
  std::vector<double> sum(own.size());
  if (own.empty()) return sum;
  const std::vector<double> all = gathered(ranks, std::span<const double>(own));
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % own.size()] += all[i];
  return sum;
}

void require_same(Communicator& ranks, std::span<const Fact> facts) {
  std::vector<std::uint64_t> own;
  for (const Fact& fact : facts) own.push_back(XXH3_64bits(fact.value.data(), fact.value.size()));
  const std::vector<std::uint64_t> all = gathered(ranks, std::span<const std::uint64_t>(own));
  for (std::size_t i = 0; i < facts.size(); ++i) {
    for (int rank = 1; rank < ranks.ranks(); ++rank) {
      const std::uint64_t there = all[static_cast<std::size_t>(rank) * facts.size() + i];
      if (there == all[i]) continue;
      throw SharedError(
          fmt::format("rank {} has another {} than rank 0 ({:016x}, and there {:016x}); start all ranks with the same",
                      rank, facts[i].what, there, all[i]));
    }
  }
}

}  // namespace hayloft::runtime::cluster
