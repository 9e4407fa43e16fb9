#pragma once

#include <string>
#include <string_view>

// Text as it comes from outside: UTF-8 or refused. One rule for files, pipes, lines and the command line.
namespace hayloft {

// Valid UTF-8 without a zero byte.
bool is_text(std::string_view bytes);

// The text of a file's bytes: without the byte order mark that some editors put first; line ends stay as they are.
// Throws Error, beginning with `name`, on UTF-16 and UTF-32, on other bytes that are no UTF-8 and on zero bytes, with
// the place and how to convert it.
std::string checked_text(const std::string& name, std::string bytes);

// The same of a text that was typed, where no mark is looked for.
void require_text(const std::string& name, std::string_view text);

}  // namespace hayloft
