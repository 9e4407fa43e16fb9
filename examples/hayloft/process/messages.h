#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "offload/text/visible.h"

// Writes what the program says on standard error. Nothing here throws: a message that cannot be written is lost, and
// the work goes on.
namespace hayloft::cli {

void write_message(std::string_view text) noexcept;
// From now on what is written here is lost: of several ranks one speaks for all. write_error() is heard all the same.
void mute_messages() noexcept;
void write_error(std::string_view text) noexcept;

// As fmt::print(stderr, ...), fit for a terminal: control characters are replaced, newlines stay. A name that is part
// of a line is shown() in it.
template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    write_message(visible(fmt::format(format, std::forward<Args>(args)...), Lines::kept));
  } catch (...) {  // no memory for a message
  }
}

// The name of a file as a part of one line.
inline std::string shown(std::string_view name) {
  return visible(name, Lines::joined);
}

// Makes descriptors 0 to 2 ones that can be used: a file opened later would otherwise take the number of a closed one,
// and what is printed would go into it. Once, before any file is opened.
void open_standard_descriptors() noexcept;

}  // namespace hayloft::cli
