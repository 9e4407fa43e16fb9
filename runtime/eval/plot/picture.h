#pragma once

#include <filesystem>

namespace hayloft::runtime::eval {

// Returns whether the name ends in .svg, in either case.
bool is_picture(const std::filesystem::path& path);

// Throws Error unless the name ends in .svg, which is what pictures are.
void check_picture(const std::filesystem::path& path);

}  // namespace hayloft::runtime::eval
