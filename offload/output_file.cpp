#include "offload/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>
#include <utility>

#include "offload/error.h"
#include "offload/temporary_file.h"
#include "offload/waiting.h"

namespace hayloft::offload {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, int cause) {
  fail("{}: cannot be written: {}", path.string(), std::generic_category().message(cause));
}

// N of /dev/fd/N and its other names, -1 for any other path. Opened anew such a file would be written from its start.
int own_descriptor(const std::filesystem::path& path) {
  const std::string name = path.lexically_normal().string();
  if (name == "/dev/stdout") return STDOUT_FILENO;
  if (name == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!name.starts_with(folder)) continue;
    int number = -1;
    const auto [stop, error] = std::from_chars(name.data() + folder.size(), name.data() + name.size(), number);
    if (error == std::errc() && stop == name.data() + name.size()) return number;
  }
  return -1;
}

}  // namespace

std::filesystem::path resolve_links(const std::filesystem::path& path) {
  constexpr int most_links = 40;  // as many as Linux follows
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    if (links == most_links) refuse(path, ELOOP);
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) refuse(path, error.value());
    target = target.parent_path() / next;  // an absolute `next` stands alone
  }
  // Absolute first: of a name that leads to nothing yet the canonical one may have no folder.
  target = std::filesystem::absolute(target, error);
  if (!error) target = std::filesystem::weakly_canonical(target, error);
  if (error) refuse(path, error.value());
  return target;
}

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path) {
  if (const int own = own_descriptor(path); own >= 0) {
    descriptor_ = ::fcntl(own, F_DUPFD_CLOEXEC, 0);
    if (descriptor_ < 0) refuse(path_, errno);
    return;
  }
  if (path.filename().empty()) refuse(path_, EISDIR);
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) refuse(path_, EISDIR);
  // Renaming over a read-only file would succeed, but it was protected for a reason.
  if (exists && ::access(path.c_str(), W_OK) != 0) refuse(path_, errno);
  if (exists && !S_ISREG(status.st_mode)) {
    descriptor_ = open_to_write(path);
    if (descriptor_ < 0) refuse(path_, errno);
    return;
  }
  target_ = resolve_links(path);
  remove_abandoned(target_);
  create_temporary(exists, status.st_mode & 07777);
}

void OutputFile::create_temporary(bool replaces, unsigned mode) {
  const std::filesystem::path temporary = temporary_name(target_);
  descriptor_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaces ? mode & 0600 : 0666);
  if (descriptor_ < 0) refuse(path_, errno);
  temporary_ = temporary;
  hold_temporary(descriptor_);
  if (replaces && ::fchmod(descriptor_, mode) != 0) {
    const int cause = errno;
    close();
    refuse(path_, cause);
  }
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

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  OutputFile file(path);
  file.write(bytes);
  file.commit();
}

void require_writable(const std::filesystem::path& path) {
  const OutputFile probe(path);
}

}  // namespace hayloft::offload
