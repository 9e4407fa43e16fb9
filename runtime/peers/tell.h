#pragma once

#include <string>

#include "runtime/peers/communicator.h"

namespace hayloft::runtime::cluster {

// Rank 0's bytes, however many, come to all; the others wait for them without taking a processor. One message where
// they are few. Throws Error when a rank is lost.
void tell(Communicator& ranks, Traffic kind, std::string& bytes);

}  // namespace hayloft::runtime::cluster
