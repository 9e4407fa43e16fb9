#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hayloft {

enum class Lines : std::uint8_t {
  kept,    // newlines and tabs stay as they are
  joined,  // they become spaces: for one line
};

// Text from a file or a model, fit for a terminal: control characters, which could move the cursor or retitle the
// window, become U+FFFD. `text` is UTF-8; so is the result, with what is ill-formed replaced likewise.
std::string visible(std::string_view text, Lines lines);

}  // namespace hayloft
