#include "examples/hayloft/process/shared_input.h"

#include <functional>
#include <optional>

#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/ranks.h"
#include "offload/error.h"
#include "runtime/peers/tell.h"

namespace hayloft::cli {
namespace {

// The first letter of a message.
enum class Came : char { text, end, interrupt, failure };

// Returns what `read` gives on the first rank, on all of them; none at its end.
std::optional<std::string> told(const std::function<std::optional<std::string>()>& read) {
  std::string message;
  const auto say = [&](Came what, const std::string& text = {}) { message = static_cast<char>(what) + text; };
  if (first_rank()) {
    try {
      const std::optional<std::string> text = read();
      text ? say(Came::text, *text) : say(Came::end);
    } catch (const Interrupted&) {
      say(Came::interrupt);
    } catch (const Error& error) {
      say(Came::failure, error.what());
    }
  }
  runtime::cluster::tell(*ranks(), runtime::cluster::Traffic::turn, message);
  const auto what = static_cast<Came>(message.at(0));
  message.erase(0, 1);
  if (what == Came::interrupt) throw Interrupted(Interrupted::Of::all_ranks);
  if (what == Came::failure) throw runtime::cluster::SharedError(message);
  return what == Came::text ? std::optional(message) : std::nullopt;
}

}  // namespace

std::string read_text_together(const std::string& option, const std::string& path) {
  if (!over_ranks()) return read_text(option, path);
  return told([&] { return read_text(option, path); }).value_or("");
}

bool SharedLines::next(std::string& line) {
  if (!over_ranks()) return input_.next(line);
  const std::optional<std::string> text = told([&]() -> std::optional<std::string> {
    if (!input_.next(line)) return std::nullopt;
    return line;
  });
  if (text) line = *text;
  return text.has_value();
}

void check_interrupted_together() {
  if (!over_ranks()) return check_interrupted();
  char stop = first_rank() && interrupted() ? 1 : 0;
  ranks()->broadcast(runtime::cluster::Traffic::token, std::as_writable_bytes(std::span(&stop, 1)));
  if (stop != 0) throw Interrupted(Interrupted::Of::all_ranks);
}

}  // namespace hayloft::cli
