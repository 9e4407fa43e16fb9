#pragma once

#include <functional>
#include <span>
#include <string>

#include "offload/error.h"
#include "runtime/cluster/communicator.h"

// What ranks make sure of before they compute: that they belong together, and that all of them can begin.
namespace hayloft::runtime::cluster {

// An error that every rank throws with the same message, so that one of them says it for all.
class SharedError : public Error {
 public:
  using Error::Error;
};

// Does what each rank does by itself, and throws a SharedError on all of them when one of them has thrown an Error: its
// message, behind the rank where it is not that of all.
void together(Communicator& ranks, const std::function<void()>& work);

// Something that must be the same on all ranks.
struct Fact {
  std::string what;   // as in "weights"
  std::string value;  // of any length; a digest of it is compared
};
// Throws a SharedError on all ranks that names the first fact that differs, and a rank where it does. All ranks name
// the same facts in the same order.
void require_same(Communicator& ranks, std::span<const Fact> facts);

}  // namespace hayloft::runtime::cluster
