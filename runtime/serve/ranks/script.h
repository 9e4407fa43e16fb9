#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Tells what the first rank does with the sessions of its engine, as the others are told it: a list of deeds with what
// they are done to. Sessions have numbers, given by the first.
namespace hayloft::runtime::serve {

enum class Deed : std::uint32_t {
  open,        // session: an empty one
  open_saved,  // session, name of a saved context: all ranks together; there is none where one of them cannot
  fork,        // session, of which
  drop,        // session
  append,      // session, whether more follows, tokens
  score,       // session, tokens
  prepare,     // session
  step,        // sessions, a token of each
  leave,
};

class Script {
 public:
  Script& add(Deed deed);
  Script& add(std::uint32_t number);
  Script& add(std::span<const std::int32_t> tokens);
  Script& add(std::string_view text);

  std::string take() { return std::exchange(bytes_, {}); }

 private:
  std::string bytes_;
};

// Throws std::logic_error where a script does not have what is read: all ranks run one version of the program.
class ScriptReader {
 public:
  explicit ScriptReader(std::string bytes) : bytes_(std::move(bytes)) {}

  bool ended() const { return at_ == bytes_.size(); }
  Deed deed() { return static_cast<Deed>(number()); }
  std::uint32_t number();
  std::vector<std::int32_t> tokens();
  std::string text();

 private:
  void read(void* to, std::size_t bytes);
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace hayloft::runtime::serve
