#pragma once

#include <cstdint>
#include <filesystem>

namespace hayloft::runtime::eval {

enum class PictureFormat : std::uint8_t { svg, png };

// By the file name's ending, .svg or .png in either case. Throws Error on any other.
PictureFormat picture_format(const std::filesystem::path& path);

}  // namespace hayloft::runtime::eval
