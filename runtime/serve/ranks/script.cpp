#include "runtime/serve/ranks/script.h"

#include <cstring>
#include <stdexcept>

namespace hayloft::runtime::serve {

Script& Script::add(Deed deed) {
  return add(static_cast<std::uint32_t>(deed));
}

Script& Script::add(std::uint32_t number) {
  bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  return *this;
}

Script& Script::add(std::span<const std::int32_t> tokens) {
  add(static_cast<std::uint32_t>(tokens.size()));
  bytes_.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return *this;
}

Script& Script::add(std::string_view text) {
  add(static_cast<std::uint32_t>(text.size()));
  bytes_.append(text);
  return *this;
}

void ScriptReader::read(void* to, std::size_t bytes) {
  if (bytes > bytes_.size() - at_) throw std::logic_error("a script of ranks ends too early");
  std::memcpy(to, bytes_.data() + at_, bytes);
  at_ += bytes;
}

std::uint32_t ScriptReader::number() {
  std::uint32_t number = 0;
  read(&number, sizeof number);
  return number;
}

std::vector<std::int32_t> ScriptReader::tokens() {
  std::vector<std::int32_t> tokens(number());
  read(tokens.data(), tokens.size() * sizeof(std::int32_t));
  return tokens;
}

std::string ScriptReader::text() {
  std::string text(number(), '\0');
  read(text.data(), text.size());
  return text;
}

}  // namespace hayloft::runtime::serve
