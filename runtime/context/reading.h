#pragma once

#include <vector>

#include "runtime/context/context_file.h"
#include "runtime/context/ingest.h"

// Reading tokens into a context that is being written, alone or over ranks.
namespace hayloft::runtime {

// Reads `tokens` from their first on into a new file.
IngestResult begin_reading(const ModelSource& source, offload::Arena& arena, const ContextFile::Place& place,
                           const std::vector<std::int32_t>& tokens, const IngestOptions& options,
                           const PrefillProgress& progress);

// Reads on from where `snapshot` ends, that of the file or one that it goes back to from `back_from`. Where
// prefill_read_at() does not know what had been read sparsely there, the context goes on without saying it.
IngestResult go_on_reading(const ModelSource& source, offload::Arena& arena, ContextFile file,
                           const offload::Snapshot& snapshot, const offload::Snapshot* back_from,
                           const std::vector<std::int32_t>& tokens, const IngestOptions& options,
                           const PrefillProgress& progress);

// Builds what options.indices keep of the sequence, to be saved. Throws Error naming a method that keeps nothing.
std::vector<offload::SnapshotAttachment> build_indices(Session& session, const IngestOptions& options);

// Returns how many checkpoints the options, or the note of a context that may be there already, want.
int wanted_checkpoints(const IngestOptions& options, const offload::Snapshot* snapshot);

// The file keeps as many checkpoints as are asked for or noted, and notes what is asked for.
void keep_checkpoints(offload::SnapshotWriter& writer, const ModelSource& source, const offload::Snapshot& snapshot,
                      const IngestOptions& options);

}  // namespace hayloft::runtime
