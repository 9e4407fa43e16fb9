#pragma once

#include <filesystem>
#include <string>

#include "examples/hayloft/environment.h"
#include "offload/snapshot.h"
#include "runtime/ingest.h"

namespace hayloft::cli {

// The folder of the model that a saved context is to be opened with: the one given, if any; else the one it was made
// with, where it was then; else the bundled one if it has that name. Throws Error when there is none. Whether it is
// that model is checked later.
std::filesystem::path model_of(const offload::Snapshot& snapshot, const std::string& given);

// A session that goes on where the saved context ends. When the backend reads pinned memory in place, the blocks are
// copied into it, unless --kv-host says otherwise or there is no room. What the method keeps comes from the context,
// where it was saved with it.
runtime::Session open_saved(const Environment& environment, const runtime::ModelSource& source,
                            const offload::Snapshot& snapshot, runtime::SessionOptions options,
                            const runtime::Method& method);

}  // namespace hayloft::cli
