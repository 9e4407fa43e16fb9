#pragma once

#include <cstdint>
#include <filesystem>

namespace hayloft::runtime::eval {

enum class PictureFormat : std::uint8_t { svg, pdf, png };

// By the file name's ending, .svg, .pdf or .png in either case. Throws Error on any other.
PictureFormat picture_format(const std::filesystem::path& path);

}  // namespace hayloft::runtime::eval
