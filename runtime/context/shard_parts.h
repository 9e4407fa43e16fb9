#pragma once

#include <filesystem>
#include <optional>
#include <span>

#include "offload/snapshot/writer.h"
#include "runtime/peers/communicator.h"

// Finds what interrupted runs have left of contexts in shards, and how ranks go on with it from one checkpoint.
namespace hayloft::runtime {

// Throws Error where a reading of another number of ranks has left something for `path`; 1: alone.
void refuse_parts_of_others(const std::filesystem::path& path, int ranks);

// Throws Error, which says that the file is one shard of a context and goes on with `what`, where it is.
void refuse_shard(const offload::Snapshot& file, const char* what);

// This rank's shard of an interrupted reading of `tokens`, as of the last checkpoint that all ranks have; none, on all
// of them, where no rank has come to a checkpoint. `replaced`: the saving of the context that is there. Throws
// cluster::SharedError on all ranks where they have not got the shards of one reading.
std::optional<offload::SnapshotWriter> open_own_part(cluster::Communicator& ranks, const std::filesystem::path& path,
                                                     std::span<const std::int32_t> tokens,
                                                     std::optional<std::uint64_t> replaced,
                                                     const offload::SnapshotCalls& calls);

// Goes back to the last checkpoint that all ranks have. Throws cluster::SharedError where there is none, or where
// theirs are not of the same text.
void agree_on_checkpoint(cluster::Communicator& ranks, offload::SnapshotWriter& writer);

}  // namespace hayloft::runtime
