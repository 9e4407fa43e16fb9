#pragma once

#include <filesystem>
#include <string_view>

#include "offload/snapshot/snapshot.h"
#include "runtime/cluster/communicator.h"
#include "runtime/decode/prefill/ingest.h"

// Saved contexts of ranks: each writes its own blocks into a shard, and reads them back from there. All ranks make the
// same calls in the same order; what goes wrong on one of them is thrown on all, as a cluster::SharedError.
namespace hayloft::runtime {

// Reads `text` over options.session.ranks into a new context in shards at `path`, on this rank's disk or one that they
// share; rank 0 writes the manifest when all shards are whole. Until then there is no context, and nothing of it is
// left unless a rank is lost: what that leaves of unfinished shards the next run removes (IngestResult::removed), and
// reads the text again from its first token. The context keeps one checkpoint and has no indices.
IngestResult ingest_over_ranks(const ModelSource& source, offload::Arena& arena, std::string_view text,
                               const std::filesystem::path& path, const IngestOptions& options,
                               const PrefillProgress& progress = {});

// This rank's part of the context at `path`, saved by one machine or by any number of ranks. The manifest is read by
// rank 0; every rank reads the shards that have blocks of its part, beside its own `path`.
offload::Snapshot open_over_ranks(cluster::Communicator& ranks, const std::filesystem::path& path);

}  // namespace hayloft::runtime
