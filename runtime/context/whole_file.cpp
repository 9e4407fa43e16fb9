#include "runtime/context/whole_file.h"

#include <system_error>

#include "runtime/context/ingest.h"
#include "runtime/context/reading_note.h"

namespace hayloft::runtime {

bool worth_compacting(const offload::SnapshotWriter& file, const Session& session, std::span<const std::int32_t> tokens,
                      std::uint64_t beside) {
  const offload::Snapshot written = file.snapshot();
  const int noted = read_note(written.description().note, written.path().string()).checkpoints;
  if (kept_checkpoints(session.config(), noted) > 1 || file.token_count() == 0) return false;
  constexpr std::uint64_t little = 1 << 16;
  std::uint64_t tails = 0;
  for (int layer = 0; layer < session.config().layers; ++layer) {
    tails += session.cache().tail(layer).rows.size() * sizeof(f16);
  }
  const std::uint64_t whole = session.cache().host_bytes() + tokens.size_bytes() + tails + beside;
  return file.file_bytes() + tails > whole * 3 / 2 + little;
}

std::uint64_t write_whole(const std::filesystem::path& path, const offload::SnapshotDescription& description,
                          const Session& session, std::span<const std::int32_t> tokens,
                          std::span<const offload::SnapshotAttachment> attachments) {
  std::filesystem::path growing = path;
  growing += ".saving";
  auto whole = offload::SnapshotWriter::create(growing, description, true);
  try {
    save_checkpoint(whole, session, tokens, attachments, true);
    const std::uint64_t bytes = whole.file_bytes();
    whole.finish(path);
    return bytes;
  } catch (...) {
    std::error_code error;
    std::filesystem::remove(growing, error);
    throw;
  }
}

}  // namespace hayloft::runtime
