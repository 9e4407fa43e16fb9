#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace hayloft::offload {

inline constexpr std::uint64_t most_text_bytes = std::uint64_t{4} << 30;

// The whole of a file or a named pipe, byte for byte. `option` stands before the path in messages, as in "--file"; it
// may be empty. Throws Error for a folder, for a device other than a terminal and /dev/null (it may have no end), for
// more than `most` bytes, and when it cannot be read.
std::string read_file_bytes(const std::string& option, const std::filesystem::path& path,
                            std::uint64_t most = most_text_bytes);

// The same as text, see checked_text().
std::string read_text_file(const std::string& option, const std::filesystem::path& path,
                           std::uint64_t most = most_text_bytes);

// The rest of an open descriptor, byte for byte, on the same terms; `name` is the whole of what messages begin with.
std::string read_bytes(const std::string& name, int descriptor, std::uint64_t most = most_text_bytes);

}  // namespace hayloft::offload
