#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "offload/snapshot/format.h"

namespace hayloft::offload {

// An open file that holds a saved context. Everything thrown is an Error that names it. Reading is thread-safe.
class SnapshotFile {
 public:
  enum class Mode : std::uint8_t { read, write };

  static std::shared_ptr<SnapshotFile> open(const std::filesystem::path& path, Mode mode);
  // A file that did not exist, written under the name `temporary`; messages call it `path`.
  static std::shared_ptr<SnapshotFile> create(const std::filesystem::path& path,
                                              const std::filesystem::path& temporary);
  ~SnapshotFile();
  SnapshotFile(const SnapshotFile&) = delete;
  SnapshotFile& operator=(const SnapshotFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }

  std::uint64_t bytes() const;
  void read(std::uint64_t offset, std::span<std::byte> to) const;

  void lock() const;  // against other writers, until unlock() or the last user of the file is gone
  void unlock() const noexcept;

  // The last checkpoint, checked as far as later reading trusts it. Reads the header and the metadata.
  SnapshotState last_checkpoint() const;
  // The one before, as long as the next has not been begun; none else.
  std::optional<SnapshotState> checkpoint_before(const SnapshotHeader& last) const;

  // Snapshot::damaged_slot(), of a file with this last checkpoint.
  std::string damaged_slot(const SnapshotHeader& last) const;

  [[noreturn]] void refuse_damaged(const std::string& what) const;

 private:
  SnapshotFile(std::filesystem::path path, int descriptor);
  SnapshotHeader newest_header() const;

  std::filesystem::path path_;
  int descriptor_;
};

}  // namespace hayloft::offload
