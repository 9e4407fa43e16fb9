#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace hayloft::offload {

// A file that appears whole or not at all: written under a temporary name in the same folder, synced, then renamed over
// the target by commit(). Without commit() nothing is left behind and the target stays as it was. A target that is not
// a regular file (a terminal, a pipe, /dev/null) is written in place. Not thread-safe.
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

  std::filesystem::path path_;       // as the user wrote it, for messages
  std::filesystem::path target_;     // what path_ names, symbolic links followed
  std::filesystem::path temporary_;  // empty when the target is written in place, or committed
  int descriptor_ = -1;
};

// Throws what writing to `path` would throw at its start, so that a long run can be refused before it begins. Leaves
// nothing behind.
void require_writable(const std::filesystem::path& path);

// For others who replace a file whole. A name in the folder of `target` that no other writer uses:
std::filesystem::path temporary_name(const std::filesystem::path& target);
// and what makes a rename in `folder` last, as far as the system can:
void sync_folder(const std::filesystem::path& folder) noexcept;

}  // namespace hayloft::offload
