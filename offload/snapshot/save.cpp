#include <system_error>

#include "offload/error.h"
#include "offload/snapshot/writer.h"

namespace hayloft::offload {

void save_snapshot(const std::filesystem::path& path, const SnapshotDescription& description, const Store& store,
                   std::span<const std::int32_t> tokens, std::span<const TailImage> tails, bool overwrite,
                   std::span<const SnapshotAttachment> attachments) {
  std::error_code error;
  if (!overwrite && std::filesystem::exists(path, error)) {
    fail("{}: exists; name another file or remove it", path.string());
  }
  std::filesystem::path growing = path;
  growing += ".saving";
  try {
    SnapshotWriter writer = SnapshotWriter::create(growing, description, true);
    writer.checkpoint(store, tokens, tails, attachments, true);
    writer.finish(path);
  } catch (...) {
    std::filesystem::remove(growing, error);
    throw;
  }
}

}  // namespace hayloft::offload
