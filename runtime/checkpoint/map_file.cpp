#include "runtime/checkpoint/map_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "offload/error.h"
#include "offload/lfs_pointer.h"

namespace hayloft::runtime {
namespace {

std::string system_message() {
  return std::generic_category().message(errno);
}

// Closes a descriptor at the end of a scope; a mapping outlives it.
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

}  // namespace

std::unique_ptr<const offload::MappedFile> map_file(const std::filesystem::path& path) {
  // Not blocking, so that a pipe under this name is refused instead of waited for.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) fail("{}: cannot be opened: {}", path.string(), system_message());
  struct stat status {};
  if (::fstat(file.number, &status) != 0) fail("{}: cannot be read: {}", path.string(), system_message());
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
  if (status.st_size == 0) fail("{}: the file is empty", path.string());
  std::string beginning(1024, '\0');
  const ssize_t read = ::pread(file.number, beginning.data(), beginning.size(), 0);
  beginning.resize(static_cast<std::size_t>(std::max<ssize_t>(read, 0)));
  refuse_lfs_pointer(path.string(), beginning);
  return std::make_unique<offload::MappedFile>(file.number, static_cast<std::uint64_t>(status.st_size), path);
}

}  // namespace hayloft::runtime
