#include "runtime/context/context_file.h"

#include <numeric>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/output_file.h"
#include "runtime/context/ingest.h"
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

std::filesystem::path part_of(const std::filesystem::path& path) {
  std::filesystem::path part = path;
  part += ".part";
  return part;
}

}  // namespace

ContextFile::ContextFile(const Place& place, SnapshotWriter writer, bool anew)
    : place_(place), writer_(std::move(writer)), anew_(anew) {}

ContextFile ContextFile::create(const Place& place, offload::SnapshotDescription description) {
  if (!place.ranks->several()) {
    return {place, SnapshotWriter::create(part_of(place.path), description, false, place.calls), true};
  }
  description.shard = place.ranks->shard();
  description.saving = cluster::told(*place.ranks, random_number());
  std::optional<SnapshotWriter> writer;
  together(*place.ranks, [&] {
    // In the place of one without tokens, see open_own_part().
    writer.emplace(SnapshotWriter::create(offload::growing_shard_path(place.path, description.shard), description, true,
                                          place.calls));
  });
  return {place, std::move(*writer), true};
}

std::optional<ContextFile> ContextFile::open_part(const Place& place, std::span<const std::int32_t> tokens) {
  std::error_code error;
  if (!place.ranks->several()) {
    refuse_parts_of_others(place.path, 1);
    if (!std::filesystem::exists(part_of(place.path), error)) return std::nullopt;
    return ContextFile(place, SnapshotWriter::open_to_append(part_of(place.path), place.calls), true);
  }
  together(*place.ranks, [&] { refuse_parts_of_others(place.path, place.ranks->ranks()); });
  auto writer = open_own_part(*place.ranks, place.path, tokens, place.replaced, place.calls);
  if (!writer) return std::nullopt;
  return ContextFile(place, std::move(*writer), true);
}

ContextFile ContextFile::open_existing(const Place& place) {
  if (!place.ranks->several()) {
    SnapshotWriter writer = SnapshotWriter::open_to_append(place.path, place.calls);
    if (!writer.snapshot().description().shard.alone()) {
      fail("{}: is one shard of a context; add to that by as many ranks as it has shards", place.path.string());
    }
    return {place, std::move(writer), false};
  }
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
        "{}: is no context in shards, so one process goes on with it; start hayloft alone, or make another context by "
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
  ContextFile file(place, std::move(*writer), false);
  file.said_tokens_ = manifest->tokens;
  return file;
}

std::optional<std::uint64_t> ContextFile::saving() const {
  if (!place_.ranks->several()) return std::nullopt;
  return snapshot().description().saving;
}

void ContextFile::checkpoint(const Session& session, std::span<const std::int32_t> tokens,
                             std::span<const offload::SnapshotAttachment> attachments, bool complete) {
  together(*place_.ranks, [&] { save_checkpoint(writer_, session, tokens, attachments, complete); });
}

std::uint64_t ContextFile::bytes() const {
  if (!place_.ranks->several()) return writer_.file_bytes();
  const std::vector<std::uint64_t> all = cluster::of_all(*place_.ranks, writer_.file_bytes());
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0}) + offload::manifest_bytes;
}

bool ContextFile::named() const {
  return !place_.ranks->several() || said_tokens_ == writer_.token_count();
}

void ContextFile::finish() {
  if (!place_.ranks->several()) return writer_.finish(place_.path);
  const offload::SnapshotDescription what = snapshot().description();
  const std::filesystem::path shard = offload::shard_path(place_.path, what.saving, what.shard);
  const offload::ShardManifest manifest{what.saving, what.shard.ranks, writer_.token_count(), what.model.fingerprint};
  // Tokens that have been added in a single checkpoint are not there before the manifest says so: until then each shard
  // has the checkpoint before, too, which finish() overwrites.
  if (!anew_) write_manifest(manifest);
  together(*place_.ranks, [&] { writer_.finish(shard); });
  if (anew_) write_manifest(manifest);
  if (place_.replaced) remove_other_shards(manifest.saving);
}

void ContextFile::write_manifest(const offload::ShardManifest& manifest) const {
  together(*place_.ranks, [&] {
    if (place_.ranks->rank() != 0) return;
    if (anew_ && !place_.replaced) require_new(place_.path);
    const auto bytes = offload::encode_manifest(manifest);
    offload::OutputFile file(place_.path);
    file.write(std::span<const std::byte>(bytes));
    file.commit();
  });
}

void ContextFile::remove_other_shards(std::uint64_t saving) const {
  std::error_code error;
  for (const offload::NamedShard& found : offload::find_shards(place_.path)) {
    const bool own = found.shard == place_.ranks->shard();
    if (own && found.saving && *found.saving != saving) std::filesystem::remove(found.file, error);
  }
}

void save_checkpoint(SnapshotWriter& writer, const Session& session, std::span<const std::int32_t> tokens,
                     std::span<const offload::SnapshotAttachment> attachments, bool complete) {
  const std::vector<offload::SnapshotTail> tails = session.cache().tails();
  std::vector<offload::TailImage> images;
  for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
  writer.checkpoint(session.cache().store(), tokens, images, attachments, complete);
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

void require_new(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  fail("{}: exists already; choose another name, remove it, or go on with it by --append", path.string());
}

}  // namespace hayloft::runtime
