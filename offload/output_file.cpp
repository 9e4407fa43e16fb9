#include "offload/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "offload/error.h"

namespace hayloft::offload {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, int cause) {
  fail("{}: cannot be written: {}", path.string(), std::generic_category().message(cause));
}

}  // namespace

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<unsigned> count{0};
  return target.parent_path() /
         fmt::format(".{}.{}.{}.partial", target.filename().string(), ::getpid(), count.fetch_add(1));
}

void sync_folder(const std::filesystem::path& folder) noexcept {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  target_ = std::filesystem::weakly_canonical(path, error);
  if (error) refuse(path_, error.value());
  if (path.filename().empty()) refuse(path_, EISDIR);

  struct stat status {};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) refuse(path_, EISDIR);
  // Renaming over a read-only file would succeed, but it was protected for a reason.
  if (exists && ::access(target_.c_str(), W_OK) != 0) refuse(path_, errno);
  if (exists && !S_ISREG(status.st_mode)) {
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) refuse(path_, errno);
    return;
  }
  const std::filesystem::path temporary = temporary_name(target_);
  descriptor_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) refuse(path_, errno);
  temporary_ = temporary;
}

OutputFile::~OutputFile() {
  close();
}

void OutputFile::close() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void OutputFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t most = std::size_t{1} << 30;  // Linux writes a little under 2 GiB at a time
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), most));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(path_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::commit() {
  if (temporary_.empty()) {
    close();
    return;
  }
  if (::fsync(descriptor_) != 0) refuse(path_, errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) refuse(path_, errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) refuse(path_, errno);
  temporary_.clear();
  sync_folder(target_.parent_path());
}

void require_writable(const std::filesystem::path& path) {
  const OutputFile probe(path);
}

}  // namespace hayloft::offload
