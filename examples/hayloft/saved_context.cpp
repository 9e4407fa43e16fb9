#include "examples/hayloft/saved_context.h"

#include <algorithm>

#include "examples/hayloft/bundled_model.h"
#include "examples/hayloft/process/file_roles.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/context/hot_context.h"
#include "runtime/context/hot_file.h"
#include "runtime/context/saved_shards.h"

namespace hayloft::cli {

offload::Snapshot open_saved_file(const std::filesystem::path& path) {
  prepare_together([] {});  // ranks meet
  return runtime::open_over_ranks(peers(), path);
}

std::filesystem::path model_of(const offload::Snapshot& snapshot, const std::string& given) {
  if (!given.empty()) return given;
  const std::filesystem::path made_with = snapshot.description().model.name;
  std::error_code error;
  if (std::filesystem::exists(made_with, error)) {
    require_not_output(made_with);
    return made_with;
  }
  if (error) {
    fail("{}: the model it was made with, {}, cannot be reached: {}; say where it is by --model",
         snapshot.path().string(), made_with.string(), error.message());
  }
  const std::filesystem::path bundled = std::filesystem::weakly_canonical(bundled_model());
  if (made_with.filename() == bundled.filename()) {
    require_not_output(bundled);
    return bundled;
  }
  fail("{}: the model it was made with is no longer at {}; say where it is by --model", snapshot.path().string(),
       made_with.string());
}

bool copies_saved(const Environment& environment, const offload::Snapshot& snapshot) {
  if (!environment.backend->pinning()) return false;
  if (environment.kv_host != gpu::KvHost::automatic) return environment.kv_host == gpu::KvHost::pinned;
  return snapshot.file_bytes() <= environment.arena->budget_bytes() - environment.arena->used_bytes();
}

runtime::Session open_saved(const Environment& environment, const runtime::ModelSource& source,
                            const offload::Snapshot& snapshot, runtime::SessionOptions options,
                            const runtime::Method& method) {
  options.cache.copy_saved = copies_saved(environment, snapshot);
  if (environment.backend->pinning() && environment.kv_host == gpu::KvHost::automatic && !options.cache.copy_saved) {
    note(
        "note: {} of keys and values stay in their file and are copied piece by piece, which is slower: {} of "
        "host memory may be used, see --host-memory\n",
        format_bytes(snapshot.file_bytes()),
        format_bytes(environment.arena->budget_bytes() - environment.arena->used_bytes()));
  }
  return open_context(source, *environment.arena, snapshot, options, &method);
}

std::shared_ptr<const runtime::ColumnRecall> measured_columns(const offload::Snapshot& snapshot) {
  auto recall = runtime::saved_column_recall(snapshot);
  const std::vector<std::string> kept = snapshot.attachments();
  if (!recall && std::ranges::find(kept, runtime::column_recall_name) != kept.end()) {
    note(
        "note: {}: what was measured of its columns cannot be read, and --attn auto chooses without it; "
        "hayloft inspect --verify says what is damaged\n",
        shown(snapshot.path().string()));
  }
  return recall;
}

void keep_hot_reads(const Environment& environment, const runtime::Session& session, const offload::Snapshot& snapshot,
                    bool verbose) noexcept {
  try {
    const bool kept = runtime::keep_hot(session, *environment.backend, snapshot);
    if (kept && verbose)
      note("{}: what was read often, for the next time\n", shown(runtime::hot_file_of(snapshot.path()).string()));
  } catch (const std::exception& error) {
    if (verbose) note("what was read often is not kept for the next time: {}\n", error.what());
  }
}

}  // namespace hayloft::cli
