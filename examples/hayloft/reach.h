#pragma once

#include <string>
#include <vector>

#include "runtime/decode/session.h"

// Says what a user is told when a method that is meant to select attended to everything, so that its result says
// nothing of how it selects.
namespace hayloft::cli {

// Says on standard error that the steps of the session, by `method`, attended to the whole context, why, and what
// leaves the method something to select. Says nothing where they did not, or where the method is dense attention.
void note_reach(const runtime::Session& session, const runtime::MethodOptions& method);

}  // namespace hayloft::cli
