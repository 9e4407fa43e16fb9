#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "offload/snapshot/shards.h"
#include "offload/snapshot/writer.h"
#include "runtime/decode/session.h"
#include "runtime/peers/communicator.h"

namespace hayloft::runtime {

class FileForm;  // one file, or shards and their manifest (runtime/context/file_form.h)

// A context that is being written: its file, or over ranks a shard on each of them and the manifest. All ranks make the
// same calls in the same order; what goes wrong on one of them is thrown on all, as a cluster::SharedError.
//
// Checkpoints of ranks go in step: none is begun before all ranks have the one before on their disks. So wherever a run
// is ended, the last checkpoints of two ranks are the same or neighbours, and a rank that is ahead still has the one
// before (SnapshotWriter::take_back): all of them go on from the last that everybody has.
class ContextFile {
 public:
  struct Place {
    std::filesystem::path path;                        // the context's name
    cluster::Communicator* ranks = &cluster::alone();  // that read it
    offload::SnapshotCalls calls = offload::system_calls();
    std::optional<std::uint64_t> replaced = {};  // the shards' saving of the context there, which this one replaces
  };

  // A new one, under the name PATH.part, or PATH.part.KofN for ranks, until it is finished.
  static ContextFile create(const Place& place, offload::SnapshotDescription description);
  // Opens what an interrupted run has left of such a one, as of the last checkpoint that all ranks have; shards that
  // have their names already, but no manifest, when they hold `tokens`. None where there is nothing but what ended
  // before its first checkpoint. Throws Error on shards of another number of ranks, and where some are missing.
  static std::optional<ContextFile> open_part(const Place& place, std::span<const std::int32_t> tokens);
  // Removes the PATH.part of a process alone that holds no token: of what has failed before its first checkpoint
  // nothing is left behind.
  static void drop_empty_part(const Place& place) noexcept;
  // Returns the PATH.part beside a context that is there already, out of which an interrupted run has written it.
  static std::optional<std::filesystem::path> left_part(const Place& place);
  // A context that is there, to go on with it in its place. Over ranks it lies in as many shards.
  static ContextFile open_existing(const Place& place);

  offload::SnapshotWriter& writer() { return writer_; }
  offload::Snapshot snapshot() const { return writer_.snapshot(); }
  const std::filesystem::path& path() const { return place_.path; }
  bool anew() const { return anew_; }  // it has not got its name yet
  // Returns whether it may be written once more as a whole, under its name, in place of the file that has grown.
  bool may_be_rewritten() const;

  // SnapshotWriter::checkpoint with what the session has read of `tokens`, from their first on.
  void checkpoint(const Session& session, std::span<const std::int32_t> tokens,
                  std::span<const offload::SnapshotAttachment> attachments = {}, bool complete = false);
  std::uint64_t bytes() const;  // of all files
  bool named() const;  // the last checkpoint is what the context's name stands for; of a context that was there

  // The last checkpoint was a complete one: gives the context its name. A context in shards is there, or has become
  // another, with its manifest. Shards of an earlier one are removed.
  void finish();

 private:
  ContextFile(const FileForm& form, const Place& place, offload::SnapshotWriter writer, bool anew);

  const FileForm* form_;
  Place place_;
  offload::SnapshotWriter writer_;
  bool anew_;
  std::int64_t said_tokens_ = -1;  // in the manifest that was there
};

// Throws Error where there is something of this name.
void require_new(const std::filesystem::path& path);

// A manifest as rank 0 has it at `path`, told to all of them; none where that is no manifest.
std::optional<offload::ShardManifest> manifest_of_first(cluster::Communicator& ranks,
                                                        const std::filesystem::path& path);

}  // namespace hayloft::runtime
