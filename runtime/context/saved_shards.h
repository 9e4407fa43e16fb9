#pragma once

#include <filesystem>

#include "offload/snapshot/snapshot.h"
#include "runtime/peers/communicator.h"

// Saved contexts, opened by ranks.
namespace hayloft::runtime {

// This rank's part of the context at `path`, saved by one machine or by any number of ranks; of a process alone all of
// it. The manifest is read by rank 0; every rank reads the shards that have blocks of its part, beside its own `path`.
offload::Snapshot open_over_ranks(cluster::Communicator& ranks, const std::filesystem::path& path);

}  // namespace hayloft::runtime
