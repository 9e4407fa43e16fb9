#include "runtime/serve/changing_head.h"

#include <algorithm>
#include <string_view>

namespace hayloft::runtime::serve {

bool drop_changing_head(std::string& system) {
  constexpr std::string_view known = "x-anthropic-billing-header:";
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  bool dropped = false;
  while (std::ranges::equal(std::string_view(system).substr(0, known.size()), known, {}, lower)) {
    const std::size_t end = system.find('\n');
    system.erase(0, end == std::string::npos ? end : end + 1);
    dropped = true;
  }
  return dropped;
}

}  // namespace hayloft::runtime::serve
