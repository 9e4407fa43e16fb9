#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

// A folder of texts, such as a code base, as one text.
namespace hayloft::cli {

struct FolderText {
  // For every file, by its path below the folder (control characters replaced), in byte order: a line "=== path/to/file
  // ===", its text, a newline where that does not end in one, and an empty line.
  std::string text;
  int files = 0;
  std::vector<std::string> no_text;  // left out: those with a zero byte or other bytes that are no UTF-8
  int hidden = 0;                    // left out unread: names that begin with a dot, and what is below such folders
  int links = 0;                     // likewise symbolic links, which may lead anywhere
  int not_included = 0;              // that no pattern matches
};

// Files that match one of `include` (fnmatch(3): * and ? also match '/'), by path below the folder or by name alone; of
// none, all. Throws Error naming what cannot be read.
FolderText read_folder(const std::filesystem::path& folder, const std::vector<std::string>& include);

// The paths of those files below the folder, with '/' between their parts, in the order in which they are read.
std::vector<std::string> folder_paths(const std::filesystem::path& folder, const std::vector<std::string>& include);

// Says what was taken and what was left out, in a line without its end.
std::string describe(const std::filesystem::path& folder, const FolderText& read);

}  // namespace hayloft::cli
