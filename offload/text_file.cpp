#include "offload/text_file.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "offload/error.h"
#include "offload/lfs_pointer.h"
#include "offload/text/format.h"
#include "offload/text/text_check.h"
#include "offload/waiting.h"

namespace hayloft::offload {
namespace {

bool is_endless(int descriptor, const struct stat& status) {
  if (!S_ISCHR(status.st_mode)) return S_ISBLK(status.st_mode);
  const bool null = ::major(status.st_rdev) == 1 && ::minor(status.st_rdev) == 3;
  return !null && ::isatty(descriptor) == 0;
}

std::string input_name(const std::string& option, const std::filesystem::path& path) {
  return option.empty() ? path.string() : fmt::format("{} {}", option, path.string());
}

[[noreturn]] void refuse_length(const std::string& name, std::uint64_t most) {
  fail("{}: has more than {}, the longest text that is read", name, format_bytes(most));
}

}  // namespace

std::string read_bytes(const std::string& name, int descriptor, std::uint64_t most) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail("{}: cannot be read: {}", name, std::generic_category().message(errno));
  if (S_ISDIR(status.st_mode)) fail("{}: this is a folder", name);
  if (is_endless(descriptor, status)) fail("{}: this is a device, which may have no end; name a file", name);
  std::string text;
  if (S_ISREG(status.st_mode)) {
    if (static_cast<std::uint64_t>(status.st_size) > most) refuse_length(name, most);
    text.reserve(static_cast<std::size_t>(status.st_size));
  }
  for (char piece[1 << 16];;) {
    if (!S_ISREG(status.st_mode)) wait_for_input(descriptor);
    const ssize_t got = ::read(descriptor, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      fail("{}: cannot be read after {} bytes: {}", name, text.size(), std::generic_category().message(errno));
    }
    if (got == 0) return text;
    if (text.size() + static_cast<std::size_t>(got) > most) refuse_length(name, most);
    text.append(piece, static_cast<std::size_t>(got));
  }
}

std::string read_text_file(const std::string& option, const std::filesystem::path& path, std::uint64_t most) {
  return checked_text(input_name(option, path), read_file_bytes(option, path, most));
}

std::string read_file_bytes(const std::string& option, const std::filesystem::path& path, std::uint64_t most) {
  const std::string name = input_name(option, path);
  const int descriptor = open_to_read(path);
  if (descriptor < 0) fail("{}: cannot be read: {}", name, std::generic_category().message(errno));
  try {
    std::string text = read_bytes(name, descriptor, most);
    refuse_lfs_pointer(name, text);
    ::close(descriptor);
    return text;
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

}  // namespace hayloft::offload
