#include "offload/error.h"

#include <cstddef>

namespace hayloft {
namespace {

constexpr std::size_t kMostBytes = 4000;
constexpr std::size_t kEndBytes = 1000;  // where the remedy is

bool within_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

std::string bounded_message(const std::string& message) {
  if (message.size() <= kMostBytes) return message;
  std::size_t begin = kMostBytes - kEndBytes;
  std::size_t end = message.size() - kEndBytes;
  while (begin > 0 && within_character(message[begin])) --begin;
  while (end < message.size() && within_character(message[end])) ++end;
  return fmt::format("{} [{} bytes left out] {}", message.substr(0, begin), end - begin, message.substr(end));
}

}  // namespace hayloft
