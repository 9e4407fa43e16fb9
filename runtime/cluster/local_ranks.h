#pragma once

#include <functional>

#include "runtime/peers/communicator.h"

namespace hayloft::runtime::cluster {

// Runs `work` as so many ranks, each on a thread of its own of this process. What one of them throws ends the others at
// their next call, and is thrown to the caller.
void run_local_ranks(int ranks, const std::function<void(Communicator& communicator)>& work);

}  // namespace hayloft::runtime::cluster
