#include "offload/waiting.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <cerrno>

namespace hayloft::offload {
namespace {

constexpr int pause_ms = 100;  // between two calls of the check

std::atomic<void (*)()> check_now = nullptr;

void check() {
  if (void (*const function)() = check_now.load()) function();
}

// Opened without blocking, so that it can be waited for with a check now and then; used with blocking.
int blocking(int descriptor) {
  if (descriptor >= 0) ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) & ~O_NONBLOCK);
  return descriptor;
}

}  // namespace

void check_while_waiting(void (*check)()) {
  check_now = check;
}

int open_to_read(const std::filesystem::path& path) {
  return blocking(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

int open_to_write(const std::filesystem::path& path) {
  for (;;) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor >= 0 || errno != ENXIO || !std::filesystem::is_fifo(path)) return blocking(descriptor);
    check();
    ::poll(nullptr, 0, pause_ms);
  }
}

// A pipe that was opened before anybody wrote to it is not at its end until somebody has come and gone: poll() tells
// the two apart, which read() does not.
void wait_for_input(int descriptor) {
  pollfd waited{descriptor, POLLIN, 0};
  for (;;) {
    check();
    const int ready = ::poll(&waited, 1, pause_ms);
    if (ready > 0 || (ready < 0 && errno != EINTR)) return;
  }
}

}  // namespace hayloft::offload
