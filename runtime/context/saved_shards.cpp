#include "runtime/context/saved_shards.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/attention/column_recall.h"
#include "runtime/context/context_file.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime {

namespace {

// Returns what was measured of the context's columns, by which `auto` chooses, as bytes; none where that is damaged.
std::string found_by_columns(const offload::Snapshot& snapshot) {
  try {
    const auto saved = snapshot.attachment(column_recall_name);
    return saved ? std::string(reinterpret_cast<const char*>(saved->data()), saved->size()) : std::string();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

offload::Snapshot open_over_ranks(cluster::Communicator& ranks, const std::filesystem::path& path) {
  if (!ranks.several()) return offload::Snapshot::open(path);
  const auto of = manifest_of_first(ranks, path);
  std::optional<offload::Snapshot> opened;
  std::string what;
  cluster::together(ranks, [&] {
    opened.emplace(of ? offload::Snapshot::open_shards(path, *of, ranks.shard())
                      : offload::Snapshot::open(path, offload::Snapshot::Accept::complete, ranks.shard()));
    const std::vector<std::int32_t> tokens = opened->tokens();
    const offload::StoreShape& shape = opened->description().shape;
    what = fmt::format("{} {} {} {} {} {} ", opened->description().note, opened->cached_tokens(), shape.layers,
                       shape.block_tokens, offload::name(shape.columns), offload::name(shape.rows));
    what.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(std::int32_t));
    what += found_by_columns(*opened);
  });
  const cluster::Fact facts[] = {{"saved context", what}};
  cluster::require_same(ranks, facts);
  return std::move(*opened);
}

}  // namespace hayloft::runtime
