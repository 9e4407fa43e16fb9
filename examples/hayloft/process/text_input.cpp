#include "examples/hayloft/process/text_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "offload/text/list.h"
#include "offload/text/text_check.h"
#include "offload/text_file.h"
#include "offload/waiting.h"

namespace hayloft::cli {
namespace {

constexpr std::uint64_t most_line_bytes = std::uint64_t{64} << 20;

// Linux holds so much of what is typed until a newline or Ctrl-D, and drops what follows.
constexpr std::size_t most_typed_bytes = 4095;

[[noreturn]] void refuse_cut(const std::string& what) {
  fail("{}: a terminal cuts lines at {} bytes, and this one may have been longer; give it by a pipe, as in < FILE",
       what, most_typed_bytes);
}

void require_whole_lines(const std::string& option, const std::string& text) {
  std::size_t number = 0;
  for (const std::string_view line : split_list(text, '\n')) {
    ++number;
    if (line.size() >= most_typed_bytes) refuse_cut(fmt::format("{} -, line {}", option, number));
  }
}

}  // namespace

std::string read_text(const std::string& option, const std::string& path) {
  if (path != "-") return offload::read_text_file(option, path);
  const std::string name = option + " -";
  std::string text = offload::read_bytes(name, STDIN_FILENO);
  if (isatty(STDIN_FILENO) != 0) require_whole_lines(option, text);  // first: a line may be cut inside a character
  return checked_text(name, std::move(text));
}

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\n") == std::string::npos;
}

void check_typed_texts(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_name().find("TEXT") == std::string::npos) continue;
    for (const std::string& text : option->results()) require_text("--" + option->get_lnames().front(), text);
  }
}

LineInput::LineInput() : terminal_(isatty(STDIN_FILENO) != 0) {}

bool LineInput::next(std::string& line) {
  while (take(line)) {
    try {
      check(line);
      return true;
    } catch (const Error& error) {
      if (!terminal_) throw;
      note("{}; the line is passed over\n", error.what());
    }
  }
  return false;
}

bool LineInput::take(std::string& line) {
  if (terminal_) note("> ");
  ++number_;
  cut_ = false;
  std::size_t end = ahead_.find('\n');
  while (end == std::string::npos && !ended_) {
    if (ahead_.size() > most_line_bytes) fail("{}: has more than {}", name(), format_bytes(most_line_bytes));
    offload::wait_for_input(STDIN_FILENO);
    char piece[1 << 12];
    const ssize_t got = ::read(STDIN_FILENO, piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("standard input: {}", std::strerror(errno));
    ended_ = got == 0;
    const std::size_t before = ahead_.size();
    ahead_.append(piece, static_cast<std::size_t>(got));
    end = ahead_.find('\n', before);
    cut_ |= terminal_ && std::min(end, ahead_.size()) - before >= most_typed_bytes;
  }
  if (end == std::string::npos && ahead_.empty()) {
    if (terminal_) note("\n");
    return false;
  }
  line = ahead_.substr(0, end);
  ahead_.erase(0, end == std::string::npos ? end : end + 1);
  return true;
}

void LineInput::check(std::string& line) const {
  if (cut_) refuse_cut(name());
  if (number_ == 1) {
    line = checked_text(name(), std::move(line));
  } else {
    require_text(name(), line);
  }
  if (line.ends_with('\r')) line.pop_back();  // of a file that was written on Windows
}

std::string LineInput::name() const {
  return fmt::format("standard input, line {}", number_);
}

}  // namespace hayloft::cli
