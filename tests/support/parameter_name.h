#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <sstream>
#include <string>

namespace hayloft::test {

// Makes of what is written a name as GoogleTest takes it, of letters, digits and underscores: "d=64 r=16" is "d64_r16".
inline std::string name_of_text(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name += c;
    } else if (c != '=' && !name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  if (!name.empty() && name.back() == '_') name.pop_back();
  return name;
}

// The last argument of every INSTANTIATE_TEST_SUITE_P: a test is named by its parameter as operator<< writes it, so
// that ctest -N and failures say what was tested. A struct gets its operator<< beside it.
inline constexpr auto by_value = [](const auto& instance) {
  std::ostringstream text;
  text << instance.param;
  return name_of_text(text.str());
};

}  // namespace hayloft::test
