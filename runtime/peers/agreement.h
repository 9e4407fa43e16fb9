#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "offload/error.h"
#include "runtime/peers/communicator.h"

// Ranks make sure before they compute: that they belong together, and that all of them can begin.
namespace hayloft::runtime::cluster {

// An error that every rank throws with the same message, so that one of them says it for all.
class SharedError : public Error {
 public:
  using Error::Error;
};

// Does what each rank does by itself, and throws a SharedError on all of them when one of them has thrown an Error: its
// message, behind the rank where it is not that of all. A process alone throws what the work throws.
void together(Communicator& ranks, const std::function<void()>& work);

// The sums of what each rank has, as many numbers, in the order of the ranks and so the same on all.
std::vector<double> summed(Communicator& ranks, const std::vector<double>& own);

// Returns rank 0's value on all of them; of a type that is plain bytes.
template <class T>
T told(Communicator& ranks, T value, Traffic kind = Traffic::start) {
  ranks.broadcast(kind, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// Returns each rank's value, in their order; likewise.
template <class T>
std::vector<T> of_all(Communicator& ranks, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(ranks.ranks()));
  ranks.all_gather(Traffic::start, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// Something that must be the same on all ranks.
struct Fact {
  std::string what;   // as in "weights"
  std::string value;  // of any length; a digest of it is compared
};
// Throws a SharedError on all ranks that names the first fact that differs, and a rank where it does. All ranks name
// the same facts in the same order.
void require_same(Communicator& ranks, std::span<const Fact> facts);

}  // namespace hayloft::runtime::cluster
