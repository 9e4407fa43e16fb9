#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

// Files mapped into memory, and what happens when another program cuts one short meanwhile. The kernel then has no
// bytes for the pages behind the new end and raises SIGBUS, which ends the process unless it is handled.
namespace hayloft::offload {

// The first bytes of a file, mapped read-only. Immovable; reading is thread-safe.
class MappedFile {
 public:
  // `descriptor` may be closed afterwards; `path` is for messages. Throws Error naming the path when the system
  // refuses.
  MappedFile(int descriptor, std::uint64_t bytes, const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  std::span<const std::byte> bytes() const { return {data_, bytes_}; }

  // Throws Error naming the file when it was cut short and something behind its new end has been read since: whatever
  // was computed from it is worthless.
  void check() const;
  bool is_whole() const;  // nothing of it is known to be cut off

 private:
  const std::byte* data_;
  std::uint64_t bytes_;
  std::filesystem::path path_;
  int slot_;  // in the table that the signal handler reads; -1: the table was full
};

// Maps at least so many first bytes of a file: those of a mapping of the same file under the same path that is there
// already and whole, or else new ones. So what is opened again while it is in use takes no further address space, and
// its pages are resident once. Thread-safe. Throws Error as MappedFile does.
std::shared_ptr<const MappedFile> map_shared(int descriptor, std::uint64_t bytes, const std::filesystem::path& path);

// Takes the pages of these bytes out of the process's resident memory where they are of a mapped file: who reads them
// again has them from the file. Does nothing to any other memory. Thread-safe.
void drop_mapped_pages(std::span<const std::byte> bytes);

// Handles SIGBUS from now on: where a mapped file has lost its bytes they read as zeros, and the check functions throw.
// Any other SIGBUS ends the process as before. For programs, once at their start; the library installs no handler by
// itself. 1,024 files at a time are covered.
void survive_truncated_files();

// MappedFile::check() of every file that is mapped. Costs one load while nothing has happened. Thread-safe.
void check_mapped_files();

}  // namespace hayloft::offload
