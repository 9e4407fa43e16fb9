#include <array>
#include <numeric>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "offload/output_file.h"
#include "runtime/context/file_form.h"
#include "runtime/context/shard_parts.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime {
namespace {

using cluster::together;
using offload::SnapshotWriter;

std::uint64_t random_number() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

void write_manifest(const ContextFile::Place& place, const offload::ShardManifest& manifest, bool anew) {
  together(*place.ranks, [&] {
    if (place.ranks->rank() != 0) return;
    if (anew && !place.replaced) require_new(place.path);
    const auto bytes = offload::encode_manifest(manifest);
    offload::OutputFile file(place.path);
    file.write(std::span<const std::byte>(bytes));
    file.commit();
  });
}

void remove_other_shards(const ContextFile::Place& place, std::uint64_t saving) {
  std::error_code error;
  for (const offload::NamedShard& found : offload::find_shards(place.path)) {
    const bool own = found.shard == place.ranks->shard();
    if (own && found.saving && *found.saving != saving) std::filesystem::remove(found.file, error);
  }
}

class ShardsOfRanks final : public FileForm {
 public:
  SnapshotWriter create(const Place& place, offload::SnapshotDescription description) const override {
    description.shard = place.ranks->shard();
    description.saving = cluster::told(*place.ranks, random_number());
    std::optional<SnapshotWriter> writer;
    together(*place.ranks, [&] {
      // In the place of one without tokens, see open_own_part().
      writer.emplace(SnapshotWriter::create(offload::growing_shard_path(place.path, description.shard), description,
                                            true, place.calls));
    });
    return std::move(*writer);
  }

  std::optional<SnapshotWriter> open_part(const Place& place, std::span<const std::int32_t> tokens) const override {
    together(*place.ranks, [&] { refuse_parts_of_others(place.path, place.ranks->ranks()); });
    return open_own_part(*place.ranks, place.path, tokens, place.replaced, place.calls);
  }

  Existing open_existing(const Place& place) const override {
    const auto manifest = manifest_of_first(*place.ranks, place.path);
    const int count = place.ranks->ranks();
    together(*place.ranks, [&] {
      std::error_code error;
      if (manifest && manifest->shards != count) {
        fail("{}: lies in {} shards; as many ranks go on with it, not {} (mpirun -n {})", place.path.string(),
             manifest->shards, count, manifest->shards);
      }
      if (manifest || place.ranks->rank() != 0) return;
      if (!std::filesystem::exists(place.path, error)) fail("{}: is not there; make it by --save", place.path.string());
      fail(
          "{}: is no context in shards, so one process goes on with it; start hayloft alone, or make another context "
          "by "
          "--save",
          place.path.string());
    });
    std::optional<SnapshotWriter> writer;
    together(*place.ranks, [&] {
      const std::filesystem::path shard = offload::shard_path(place.path, manifest->saving, place.ranks->shard());
      writer.emplace(SnapshotWriter::open_to_append(shard, place.calls));
      const offload::SnapshotDescription& what = writer->snapshot().description();
      if (what.saving != manifest->saving || what.shard != place.ranks->shard() ||
          what.model.fingerprint != manifest->fingerprint) {
        fail("{}: is of another context than the manifest {} says; restore the one that was saved with it",
             shard.string(), place.path.string());
      }
    });
    agree_on_checkpoint(*place.ranks, *writer);
    return {std::move(*writer), manifest->tokens};
  }

  std::uint64_t bytes(const Place& place, const SnapshotWriter& writer) const override {
    const std::vector<std::uint64_t> all = cluster::of_all(*place.ranks, writer.file_bytes());
    return std::accumulate(all.begin(), all.end(), std::uint64_t{0}) + offload::manifest_bytes;
  }

  bool named(const SnapshotWriter& writer, std::int64_t said_tokens) const override {
    return said_tokens == writer.token_count();
  }

  void finish(const Place& place, SnapshotWriter& writer, bool anew) const override {
    const offload::SnapshotDescription what = writer.snapshot().description();
    const std::filesystem::path shard = offload::shard_path(place.path, what.saving, what.shard);
    const offload::ShardManifest manifest{what.saving, what.shard.ranks, writer.token_count(), what.model.fingerprint};
    // Tokens that have been added in a single checkpoint are not there before the manifest says so: until then each
    // shard has the checkpoint before, too, which finish() overwrites.
    if (!anew) write_manifest(place, manifest, anew);
    together(*place.ranks, [&] { writer.finish(shard); });
    if (anew) write_manifest(place, manifest, anew);
    if (place.replaced) remove_other_shards(place, manifest.saving);
  }
};

}  // namespace

const FileForm& shards_of_ranks() {
  static const ShardsOfRanks form;
  return form;
}

std::optional<offload::ShardManifest> manifest_of_first(cluster::Communicator& ranks,
                                                        const std::filesystem::path& path) {
  std::array<std::byte, offload::manifest_bytes> manifest{};  // zeros: there is none
  together(ranks, [&] {
    if (ranks.rank() != 0) return;
    if (const auto read = offload::read_manifest(path)) manifest = offload::encode_manifest(*read);
  });
  return offload::decode_manifest(cluster::told(ranks, manifest));
}

}  // namespace hayloft::runtime
