#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/snapshot/snapshot.h"

namespace hayloft::offload {

// The system calls that change a file, with their results and errno; tests put failures in their place.
struct SnapshotCalls {
  std::function<ssize_t(int descriptor, const void* data, std::size_t bytes, off_t offset)> write;  // pwrite
  std::function<int(int descriptor)> sync;                                                          // fdatasync
  std::function<int(int descriptor, off_t bytes)> resize;                                           // ftruncate
  // Bytes that may yet be written into a folder; none where nobody knows. Not called where it is empty. (statvfs)
  std::function<std::optional<std::uint64_t>(const std::filesystem::path& folder)> free_bytes = {};
};
SnapshotCalls system_calls();  // those of the operating system

// Bytes under a name, to be saved with a context: Snapshot::attachment().
struct SnapshotAttachment {
  std::string name;  // 1 to 255 bytes
  std::vector<std::byte> bytes;
};

// Writes a context so that a crash at any moment leaves its last checkpoint. Use:
//
//   auto writer = SnapshotWriter::create("CTX.hay.part", description);    or open_to_append(path), which continues from
//   for (...) writer.checkpoint(store, tokens, tails);                    writer.snapshot()
//   writer.finish("CTX.hay");
//
// The file is locked against other writers while the writer lives; readers do not mind it. Throws Error naming the
// file, the cause, what is kept and what to do; after one thrown by checkpoint() the same checkpoint may be tried
// again, unless it was syncing that failed: the system may then have dropped what it could not write, and every later
// call throws. Not thread-safe.
class SnapshotWriter {
 public:
  // A new file, with a first checkpoint of no tokens; it appears whole or not at all. A file that exists is refused
  // unless `overwrite`.
  static SnapshotWriter create(const std::filesystem::path& path, const SnapshotDescription& description,
                               bool overwrite = false, SnapshotCalls calls = system_calls());

  // Continues a file, finished or not, from its last checkpoint.
  static SnapshotWriter open_to_append(const std::filesystem::path& path, SnapshotCalls calls = system_calls());

  SnapshotWriter(SnapshotWriter&&) noexcept;
  SnapshotWriter& operator=(SnapshotWriter&&) noexcept;
  ~SnapshotWriter();  // what is not in a checkpoint is lost

  // The last checkpoint, opened: where to continue.
  Snapshot snapshot() const;

  // From now on the last `checkpoints` of them are kept, 1 to 64, for Snapshot::back_to(): each as large as the tails.
  // 1, as at first: only the last, and those that were kept are forgotten.
  void keep(int checkpoints);

  // From the next checkpoint on the description has this note. Throws Error on one that is too long.
  void set_note(std::string note);

  // Goes on from snapshot().back_to(tokens), which there must be: what is behind it is gone with the next checkpoint.
  void go_back(std::int64_t tokens);

  // The number of the last checkpoint, 1 of the first. It is one more with each, and finish() makes one or two.
  std::uint64_t sequence() const;
  // Makes the checkpoint before the last that of the file again, for good. A file has it until the next is begun; false
  // where it has not, and then nothing changes. For files that are written together, one of which was not in time.
  bool take_back();

  std::int64_t token_count() const;  // of the last checkpoint
  std::uint64_t file_bytes() const;

  // Makes this the state of the file. The store and the tokens (all of them) must continue those of the last
  // checkpoint: only what is new is written, besides the tails, one per model layer, which are written each time. The
  // tails may end before the tokens do: the rest is yet to be read. Attachments take the place of those of the same
  // name, whose bytes are left behind; others stay. `complete`: nothing is to come behind it; a complete context that
  // goes on in a single such checkpoint is never seen unfinished. Returns when all of it is on the disk. A store of
  // another shape, fewer blocks or tokens than before, or tails that do not fit them are a programmer's mistake:
  // std::logic_error.
  void checkpoint(const Store& store, std::span<const std::int32_t> tokens, std::span<const TailImage> tails,
                  std::span<const SnapshotAttachment> attachments = {}, bool complete = false);

  // Marks the last checkpoint complete, unless it is, and gives the file its name, replacing a file that has it. The
  // writer is closed.
  void finish(const std::filesystem::path& final_path);

 private:
  struct Impl;
  explicit SnapshotWriter(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Throws Error, saying how much is needed and free, where there is no room for so many bytes more at `path`.
void require_free(const std::filesystem::path& path, std::uint64_t bytes, const SnapshotCalls& calls);

// Saves a complete context in one go, of what checkpoint() takes. It grows under the name PATH.saving, and appears
// whole or not at all. A file that exists is refused unless `overwrite`.
void save_snapshot(const std::filesystem::path& path, const SnapshotDescription& description, const Store& store,
                   std::span<const std::int32_t> tokens, std::span<const TailImage> tails, bool overwrite = false,
                   std::span<const SnapshotAttachment> attachments = {});

}  // namespace hayloft::offload
