#include "runtime/context/shard_parts.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include "offload/error.h"
#include "offload/snapshot/shards.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime {
namespace {

using cluster::Communicator;
using cluster::together;
using offload::NamedShard;
using offload::Snapshot;
using offload::SnapshotWriter;

// The saving of this rank's shard that is whole and of this text but has no manifest; 0: there is none. A shard of
// another text is refused, unless it may be what was replaced before.
std::uint64_t finished_saving(const std::filesystem::path& path, const offload::Shard& own,
                              std::span<const std::int32_t> tokens, std::optional<std::uint64_t> replaced) {
  for (const NamedShard& found : offload::find_shards(path)) {
    if (found.shard != own || !found.saving || found.saving == replaced) continue;
    const SnapshotWriter writer = SnapshotWriter::open_to_append(found.file);
    if (std::ranges::equal(writer.snapshot().tokens(), tokens)) return *found.saving;
    if (!replaced) {
      fail("{}: is a shard of another text whose manifest is not there; put {} back, or remove the shard",
           found.file.string(), path.string());
    }
  }
  return 0;
}

SnapshotWriter open_shard(const std::filesystem::path& file, const offload::Shard& own,
                          const offload::SnapshotCalls& calls) {
  SnapshotWriter writer = SnapshotWriter::open_to_append(file, calls);
  if (writer.snapshot().description().shard != own) {
    fail("{}: does not hold the blocks that its name says; put the right file there", file.string());
  }
  return writer;
}

}  // namespace

void refuse_parts_of_others(const std::filesystem::path& path, int ranks) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  for (const NamedShard& found : offload::find_shards(path)) {
    if (found.shard.ranks == ranks || (there && found.saving)) continue;
    fail(
        "{}: was left by a reading over {} ranks; finish that one by the same command over as many (mpirun -n {}), or "
        "remove the file",
        found.file.string(), found.shard.ranks, found.shard.ranks);
  }
  if (ranks == 1) return;
  std::filesystem::path part = path;
  part += ".part";
  if (std::filesystem::exists(part, error)) {
    fail("{}: was left by a reading without mpirun; finish that one by the same command alone, or remove the file",
         part.string());
  }
}

void refuse_shard(const Snapshot& file, const char* what) {
  if (!file.description().shard.alone()) fail("{}: is one shard of a context{}", file.path().string(), what);
}

std::optional<SnapshotWriter> open_own_part(Communicator& ranks, const std::filesystem::path& path,
                                            std::span<const std::int32_t> tokens, std::optional<std::uint64_t> replaced,
                                            const offload::SnapshotCalls& calls) {
  const std::filesystem::path part = offload::growing_shard_path(path, ranks.shard());
  std::optional<SnapshotWriter> writer;
  const auto saving_of = [&] { return writer->snapshot().description().saving; };
  std::uint64_t begun = 0;  // the saving of a part that has more than the first, empty checkpoint
  together(ranks, [&] {
    std::error_code error;
    if (!std::filesystem::exists(part, error)) return;
    writer.emplace(open_shard(part, ranks.shard(), calls));
    if (writer->sequence() > 1) begun = saving_of();
  });
  const auto first_of = [](const std::vector<std::uint64_t>& savings) {
    const auto found = std::ranges::find_if(savings, [](std::uint64_t saving) { return saving != 0; });
    return found == savings.end() ? std::uint64_t{0} : *found;
  };
  std::uint64_t saving = first_of(cluster::of_all(ranks, begun));
  if (saving == 0) {
    std::uint64_t finished = 0;
    together(ranks, [&] { finished = finished_saving(path, ranks.shard(), tokens, replaced); });
    saving = first_of(cluster::of_all(ranks, finished));
  }
  if (saving == 0) return std::nullopt;
  together(ranks, [&] {
    const std::string anew =
        fmt::format("remove {0}.part.* and {0}.{1:016x}.* of all ranks to read the text anew", path.string(), saving);
    if (writer && saving_of() == saving) return;
    if (begun != 0) fail("{}: is of another reading than the shards of other ranks; {}", part.string(), anew);
    writer.reset();
    const std::filesystem::path finished = offload::shard_path(path, saving, ranks.shard());
    std::error_code error;
    if (!std::filesystem::exists(finished, error)) {
      fail("{}: is not there, and other ranks have read a part of the text; put it back, or {}", part.string(), anew);
    }
    writer.emplace(open_shard(finished, ranks.shard(), calls));
  });
  agree_on_checkpoint(ranks, *writer);
  return writer;
}

void agree_on_checkpoint(Communicator& ranks, SnapshotWriter& writer) {
  const std::vector<std::uint64_t> all = cluster::of_all(ranks, writer.sequence());
  const std::uint64_t common = *std::ranges::min_element(all), newest = *std::ranges::max_element(all);
  std::string what;
  together(ranks, [&] {
    // Nobody goes back before all can.
    if (newest > common + 1 || (writer.sequence() > common && !writer.take_back())) {
      fail(
          "{}: is not of the same saving as the shards of other ranks; restore those that were saved together, or "
          "remove all of them",
          writer.snapshot().path().string());
    }
    const Snapshot own = writer.snapshot();
    const std::vector<std::int32_t> tokens = own.tokens();
    const offload::SnapshotDescription& of = own.description();
    what = fmt::format("{} {} {} {} {} {} {} {} {} ", of.saving, own.complete(), own.finished_tokens(),
                       own.cached_tokens(), of.note, of.shape.layers, of.shape.block_tokens,
                       offload::name(of.shape.columns), offload::name(of.shape.rows));
    what.append(reinterpret_cast<const char*>(of.model.fingerprint.data()), of.model.fingerprint.size());
    what.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(std::int32_t));
  });
  const cluster::Fact facts[] = {{"unfinished context", what}};
  cluster::require_same(ranks, facts);
}

}  // namespace hayloft::runtime
