#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "runtime/context/context_file.h"

namespace hayloft::runtime {

// Says how a context that is being written lies on disks. The operations are those of ContextFile, which
// says what they do and throw. Immutable; of ranks all call an operation together.
class FileForm {
 public:
  using Place = ContextFile::Place;

  // One that was opened to go on with it.
  struct Existing {
    offload::SnapshotWriter writer;
    std::int64_t said_tokens = -1;  // in the manifest that was there
  };

  virtual ~FileForm() = default;

  virtual offload::SnapshotWriter create(const Place& place, offload::SnapshotDescription description) const = 0;
  virtual std::optional<offload::SnapshotWriter> open_part(const Place& place,
                                                           std::span<const std::int32_t> tokens) const = 0;
  virtual Existing open_existing(const Place& place) const = 0;
  virtual std::uint64_t bytes(const Place& place, const offload::SnapshotWriter& writer) const = 0;
  virtual bool named(const offload::SnapshotWriter& writer, std::int64_t said_tokens) const = 0;
  virtual void finish(const Place& place, offload::SnapshotWriter& writer, bool anew) const = 0;
  // Shards get other names and leave nothing.
  virtual std::optional<std::filesystem::path> left_part(const Place&) const { return std::nullopt; }
  // Ranks leave areas of shards that have grown where they are: a second file of each would be one more thing to agree
  // on.
  virtual bool may_be_rewritten() const { return false; }
  // Shards without tokens stay: others take their place, see create().
  virtual void drop_empty_part(const Place&) const noexcept {}
};

const FileForm& one_file();         // of a process alone
const FileForm& shards_of_ranks();  // a shard on each rank, and the manifest

}  // namespace hayloft::runtime
