#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "examples/hayloft/process/environment.h"
#include "offload/snapshot/snapshot.h"
#include "runtime/context/column_choice.h"
#include "runtime/context/ingest.h"

namespace hayloft::cli {

// A saved context, over ranks this rank's part of it. Not within prepare_together(): ranks open it together.
offload::Snapshot open_saved_file(const std::filesystem::path& path);

// The folder of the model that a saved context is to be opened with: the one given, if any; else the one it was made
// with, where it was then; else the bundled one if it has that name. Throws Error when there is none. Whether it is
// that model is checked later.
std::filesystem::path model_of(const offload::Snapshot& snapshot, const std::string& given);

// Returns whether open_saved() copies the blocks into memory for keys and values instead of leaving them in their file:
// when the backend reads pinned memory in place, unless --kv-host says otherwise or, left to choose, there is no room.
bool copies_saved(const Environment& environment, const offload::Snapshot& snapshot);

// A session that goes on where the saved context ends. What the method keeps comes from the context, where it was saved
// with it.
runtime::Session open_saved(const Environment& environment, const runtime::ModelSource& source,
                            const offload::Snapshot& snapshot, runtime::SessionOptions options,
                            const runtime::Method& method);

// Returns what was measured of a saved context's columns; null where nothing was. Notes where that is damaged.
std::shared_ptr<const runtime::ColumnRecall> measured_columns(const offload::Snapshot& snapshot);

// At the end of a run: what it read often of the saved context is kept beside the file for the next (keep_hot). Says
// only by -v that it could not be.
void keep_hot_reads(const Environment& environment, const runtime::Session& session, const offload::Snapshot& snapshot,
                    bool verbose) noexcept;

}  // namespace hayloft::cli
