#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "offload/snapshot/format.h"
#include "offload/store/store.h"

namespace hayloft::offload {

// Throws std::logic_error, naming `path`, unless store, tokens [all of them] and tails (one per model layer) continue
// `state`, the last checkpoint of the file: SnapshotWriter::checkpoint() says how.
void check_continues(const std::filesystem::path& path, const SnapshotState& state, const Store& store,
                     std::span<const std::int32_t> tokens, std::span<const TailImage> tails);

}  // namespace hayloft::offload
