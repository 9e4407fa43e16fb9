#include "offload/temporary_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <string>
#include <string_view>
#include <system_error>

#include "offload/error.h"

namespace hayloft::offload {
namespace {

constexpr std::string_view ending = ".partial";

// Takes "NUMBER" off the front of text; -1 when none is there.
long take_number(std::string_view& text) {
  long number = -1;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return -1;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  return number;
}

// The process in ".NAME.PID.N.partial"; -1 when it is not a temporary name of NAME.
long owner_of(std::string_view file, const std::string& name) {
  const std::string beginning = "." + name + ".";
  if (!file.starts_with(beginning) || !file.ends_with(ending)) return -1;
  file.remove_prefix(beginning.size());
  const long owner = take_number(file);
  if (owner <= 0 || !file.starts_with(".")) return -1;
  file.remove_prefix(1);
  return take_number(file) >= 0 && file == ending ? owner : -1;
}

bool process_is_gone(long process) {
  return ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
}

void remove_unless_held(const std::filesystem::path& file) noexcept {
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(file.c_str());
  ::close(descriptor);
}

}  // namespace

std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<unsigned> count{0};
  return target.parent_path() /
         fmt::format(".{}.{}.{}{}", target.filename().string(), ::getpid(), count.fetch_add(1), ending);
}

void hold_temporary(int descriptor) noexcept {
  ::flock(descriptor, LOCK_EX | LOCK_NB);
}

void remove_abandoned(const std::filesystem::path& target) noexcept {
  try {
    std::error_code error;
    for (std::filesystem::directory_iterator at(target.parent_path(), error), end; !error && at != end;
         at.increment(error)) {
      const long owner = owner_of(at->path().filename().string(), target.filename().string());
      if (owner > 0 && process_is_gone(owner)) remove_unless_held(at->path());
    }
  } catch (const std::exception&) {  // no memory for a name
  }
}

void sync_folder(const std::filesystem::path& folder) noexcept {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

}  // namespace hayloft::offload
