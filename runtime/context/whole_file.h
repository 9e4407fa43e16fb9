#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "offload/snapshot/writer.h"
#include "runtime/decode/session.h"

// A context that is written once more, whole. Checkpoints leave areas of tails behind, which are most of the file of a
// short text.
namespace hayloft::runtime {

// Returns whether writing the context whole instead of one more checkpoint saves more than a third; no checkpoint
// before the last is to be kept then. `beside`: what its attachments take.
bool worth_compacting(const offload::SnapshotWriter& file, const Session& session, std::span<const std::int32_t> tokens,
                      std::uint64_t beside = 0);

// Writes what the session has read of `tokens` to PATH.saving, which then takes the place of `path`: what is there is
// as before until that moment, and after an error. Returns the bytes of the file. Throws Error as SnapshotWriter does.
std::uint64_t write_whole(const std::filesystem::path& path, const offload::SnapshotDescription& description,
                          const Session& session, std::span<const std::int32_t> tokens,
                          std::span<const offload::SnapshotAttachment> attachments);

}  // namespace hayloft::runtime
