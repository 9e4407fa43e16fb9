#include "examples/hayloft/process/text_input.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/text_file.h"
#include "offload/waiting.h"

namespace hayloft::cli {

std::string read_text(const std::string& option, const std::string& path) {
  if (path == "-") return offload::read_text(option + " -", STDIN_FILENO);
  return offload::read_text_file(option, path);
}

LineInput::LineInput() : terminal_(isatty(STDIN_FILENO) != 0) {}

bool LineInput::next(std::string& line) {
  if (terminal_) note("> ");
  std::size_t end;
  while ((end = ahead_.find('\n')) == std::string::npos && !ended_) {
    offload::wait_for_input(STDIN_FILENO);
    char piece[1 << 12];
    const ssize_t got = ::read(STDIN_FILENO, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("standard input: {}", std::strerror(errno));
    ended_ = got == 0;
    ahead_.append(piece, static_cast<std::size_t>(got));
  }
  if (end == std::string::npos && ahead_.empty()) {
    if (terminal_) note("\n");
    return false;
  }
  line = ahead_.substr(0, end);
  ahead_.erase(0, end == std::string::npos ? end : end + 1);
  return true;
}

}  // namespace hayloft::cli
