#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace hayloft::offload {

// Returns what `path` names once symbolic links are followed, whether or not something is there. Throws Error naming
// the path when they lead in a circle or through what is no folder.
std::filesystem::path resolve_links(const std::filesystem::path& path);

// A file that appears whole or not at all: written under a temporary name in the same folder, synced, then renamed over
// the target by commit(). Without commit() nothing is left behind and the target stays as it was. A file that takes the
// place of another has its permissions; a symbolic link is followed, also where it leads to nothing yet. What a killed
// process left behind of the same target is removed. A target that is not a regular file (a terminal, a pipe,
// /dev/null) and a descriptor of this process (/dev/stdout, /dev/fd/N) are written in place. Not thread-safe.
class OutputFile {
 public:
  // Opens the temporary file at once. Throws Error naming the path and the cause when it cannot be written.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);  // throws Error naming the path and the cause (disk full, ...)
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // once, after the last write; throws Error as write() does

 private:
  void close() noexcept;

  void create_temporary(bool replaces, unsigned mode);

  std::filesystem::path path_;       // as the user wrote it, for messages
  std::filesystem::path target_;     // what path_ names, symbolic links followed
  std::filesystem::path temporary_;  // empty when the target is written in place, or committed
  int descriptor_ = -1;
};

// All of a file: an OutputFile of these bytes, committed.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// Throws what writing to `path` would throw at its start, so that a long run can be refused before it begins. Leaves
// nothing behind.
void require_writable(const std::filesystem::path& path);

}  // namespace hayloft::offload
