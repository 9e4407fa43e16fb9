#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hayloft {

// Sizes as people read and write them. 1 KiB = 2^10 bytes, 1 kB = 10^3.

// Three or four significant digits in binary units: "512 B", "25.2 MiB", "1.5 TiB".
std::string format_bytes(std::uint64_t bytes);

// "4096", "64k", "1M", "16G", "2T" (binary, as llama.cpp takes them), "500MB" (decimal), "16GiB", "1.5GiB". Case and a
// space before the unit do not matter. Throws Error showing `text` and how to write it.
std::uint64_t parse_bytes(std::string_view text);

// A number of tokens or the like: "4096", "64k" = 65536, "1M" = 1048576. Whole and not negative. Throws Error showing
// `text` and how to write it.
std::int64_t parse_count(std::string_view text);

// As short as parse_count reads it back: 65536 is "64k", 1048576 "1M", 5000 "5000".
std::string format_count(std::int64_t count);

}  // namespace hayloft
