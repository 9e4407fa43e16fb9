#include "examples/hayloft/process/messages.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace hayloft::cli {

namespace {

bool muted = false;

}  // namespace

void write_message(std::string_view text) noexcept {
  if (!muted) write_error(text);
}

void mute_messages() noexcept {
  muted = true;
}

void write_error(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void open_standard_descriptors() noexcept {
  for (int number = 0; number <= 2; ++number) {
    if (::fcntl(number, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest number that is free, so this one.
    if (::open("/dev/null", number == STDIN_FILENO ? O_RDONLY : O_WRONLY) != number) return;
  }
}

}  // namespace hayloft::cli
