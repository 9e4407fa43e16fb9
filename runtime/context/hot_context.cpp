#include "runtime/context/hot_context.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "offload/error.h"
#include "offload/host/mapped_file.h"
#include "offload/output_file.h"
#include "runtime/checkpoint/map_file.h"
#include "runtime/context/hot_file.h"

namespace hayloft::runtime {
namespace {

HotSubject subject_of(const Session& session, const offload::Snapshot& snapshot) {
  HotSubject subject;
  const offload::SnapshotDescription& saved = snapshot.description();
  std::copy(saved.model.fingerprint.begin(), saved.model.fingerprint.end(), subject.fingerprint);
  subject.tokens = snapshot.token_count();
  subject.stored_tokens = saved.shape.layers > 0 ? snapshot.stored_tokens(0) : 0;
  subject.kv_heads = session.config().kv_heads;
  const bool planes = saved.shape.columns == offload::ColumnFormat::planes;
  subject.runs = session.config().head_dim * (planes ? offload::plane_count : 1);
  return subject;
}

// Ranks have other positions each, and would all write to one file.
bool is_kept(const Session& session, const gpu::Backend& backend) {
  if (!backend.keeps_reads()) return false;
  const std::vector<gpu::CacheView> layers = session.cache().global_views();
  return layers.empty() || layers.front().shard.alone();
}

// Keeps what is of the context itself, and drops what followed it.
void keep_stored(gpu::HotReads& hot, const HotSubject& subject) {
  if (hot.runs.size() != static_cast<std::size_t>(subject.kv_heads) * static_cast<std::size_t>(subject.runs)) {
    hot.runs.clear();
  }
  for (auto& positions : hot.rows) {
    positions.erase(std::lower_bound(positions.begin(), positions.end(), subject.stored_tokens), positions.end());
  }
}

}  // namespace

bool warm(const Session& session, const Method& method, gpu::Backend& backend, const offload::Snapshot& snapshot) {
  if (!is_kept(session, backend)) return false;
  const std::filesystem::path path = hot_file_of(snapshot.path());
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return false;
  const std::vector<gpu::CacheView> views = session.cache().global_views();
  std::optional<std::vector<gpu::HotReads>> hot;
  try {
    const auto file = map_file(path);
    hot = read_hot(file->bytes(), subject_of(session, snapshot), views.size());
  } catch (const Error&) {  // empty, or cannot be read
  }
  if (!hot) return false;
  bool any = false;
  const int query_heads = session.config().query_heads;
  for (std::size_t layer = 0; layer < views.size(); ++layer) {
    const auto [by, plan] = method.plan(views[layer], query_heads);
    gpu::HotReads& reads = (*hot)[layer];
    if (by->count(views[layer], plan).at(Place::link, Kind::columns) == 0) reads.runs.clear();
    if (!plan.selects()) reads.rows.clear();
    try {
      backend.warm(views[layer], reads, backend.stream());
    } catch (const Error&) {  // no room for what it takes to read them, which the steps may still have
      return any;
    }
    any = any || !reads.empty();
  }
  return any;
}

bool keep_hot(const Session& session, gpu::Backend& backend, const offload::Snapshot& snapshot) {
  if (!is_kept(session, backend)) return false;
  const HotSubject subject = subject_of(session, snapshot);
  std::vector<gpu::HotReads> layers;
  for (const gpu::CacheView& view : session.cache().global_views()) {
    keep_stored(layers.emplace_back(backend.hot_reads(view, backend.stream())), subject);
  }
  const auto empty = [](const gpu::HotReads& layer) { return layer.empty(); };
  if (std::all_of(layers.begin(), layers.end(), empty)) return false;
  const std::vector<std::byte> bytes = write_hot(subject, layers);
  offload::write_file(hot_file_of(snapshot.path()),
                      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return true;
}

}  // namespace hayloft::runtime
