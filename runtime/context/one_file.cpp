#include <system_error>

#include "offload/error.h"
#include "runtime/context/file_form.h"
#include "runtime/context/shard_parts.h"

namespace hayloft::runtime {
namespace {

using offload::SnapshotWriter;

std::filesystem::path part_of(const std::filesystem::path& path) {
  std::filesystem::path part = path;
  part += ".part";
  return part;
}

class OneFile final : public FileForm {
 public:
  SnapshotWriter create(const Place& place, offload::SnapshotDescription description) const override {
    return SnapshotWriter::create(part_of(place.path), description, false, place.calls);
  }

  std::optional<SnapshotWriter> open_part(const Place& place, std::span<const std::int32_t>) const override {
    std::error_code error;
    refuse_parts_of_others(place.path, 1);
    if (!std::filesystem::exists(part_of(place.path), error)) return std::nullopt;
    return SnapshotWriter::open_to_append(part_of(place.path), place.calls);
  }

  Existing open_existing(const Place& place) const override {
    SnapshotWriter writer = SnapshotWriter::open_to_append(place.path, place.calls);
    refuse_shard(writer.snapshot(), "; add to that by as many ranks as it has shards");
    return {std::move(writer)};
  }

  std::uint64_t bytes(const Place&, const SnapshotWriter& writer) const override { return writer.file_bytes(); }
  bool named(const SnapshotWriter&, std::int64_t) const override { return true; }
  void finish(const Place& place, SnapshotWriter& writer, bool) const override { writer.finish(place.path); }
  std::optional<std::filesystem::path> left_part(const Place& place) const override {
    std::error_code error;
    std::filesystem::path part = part_of(place.path);
    if (!std::filesystem::exists(place.path, error) || !std::filesystem::exists(part, error)) return std::nullopt;
    return part;
  }
  bool may_be_rewritten() const override { return true; }
  void drop_empty_part(const Place& place) const noexcept override {
    try {
      const SnapshotWriter locked = SnapshotWriter::open_to_append(part_of(place.path), place.calls);
      if (locked.token_count() == 0) std::filesystem::remove(part_of(place.path));
    } catch (const std::exception&) {  // there is none, or it is another process'
    }
  }
};

}  // namespace

const FileForm& one_file() {
  static const OneFile form;
  return form;
}

}  // namespace hayloft::runtime
