#pragma once

#include <string_view>
#include <vector>

namespace hayloft {

// The pieces of a list with commas, or another separator, between them. Views into `text`, never fewer than one: empty
// pieces count, so that "64,,8" has three and "64," two.
std::vector<std::string_view> split_list(std::string_view text, char separator = ',');

}  // namespace hayloft
