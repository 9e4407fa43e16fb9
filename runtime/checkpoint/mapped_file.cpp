#include "runtime/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "offload/error.h"

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

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Not blocking, so that a pipe under this name is refused instead of waited for.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.number < 0) fail("{}: cannot be opened: {}", path.string(), system_message());
  struct stat status {};
  if (::fstat(file.number, &status) != 0) fail("{}: cannot be read: {}", path.string(), system_message());
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path.string());
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (bytes_ == 0) fail("{}: the file is empty", path.string());
  void* mapping = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (mapping == MAP_FAILED) fail("{}: cannot be mapped: {}", path.string(), system_message());
  mapping_ = mapping;
}

MappedFile::~MappedFile() {
  if (mapping_) ::munmap(mapping_, bytes_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace hayloft::runtime
