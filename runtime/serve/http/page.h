#pragma once

#include <string_view>

namespace hayloft::runtime::serve::http {

extern const std::string_view page;  // page.html

}  // namespace hayloft::runtime::serve::http
