#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace hayloft {

// At most some 4,000 bytes of a message, its beginning and its end: what a file or a request has made of it may be
// long.
std::string bounded_message(const std::string& message);

// Everything that can go wrong from outside (a file, an option, a limit of the machine) is thrown as an Error. Its
// message is one line for the user: what happened, with which values, and what to do about it.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(bounded_message(message)) {}
};

// No memory is left for what was asked, where there may be some later.
class NoMemory : public Error {
 public:
  using Error::Error;
};

// Throws an Error with this message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Throws a NoMemory with this message.
template <class... Args>
[[noreturn]] void fail_for_memory(fmt::format_string<Args...> format, Args&&... args) {
  throw NoMemory(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace hayloft
