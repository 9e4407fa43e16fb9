#include "examples/hayloft/process/folder_text.h"

#include <fnmatch.h>

#include <algorithm>
#include <fstream>
#include <system_error>

#include "offload/error.h"
#include "offload/text/format.h"
#include "offload/text/text_check.h"
#include "offload/text/visible.h"
#include "offload/text_file.h"

namespace hayloft::cli {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

bool matches(const std::string& path, const std::vector<std::string>& include) {
  if (include.empty()) return true;
  const std::string name = path.substr(path.rfind('/') + 1);
  return std::any_of(include.begin(), include.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0 || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

// Returns whether there is a zero byte where git, too, looks for one: what is large and no text need not be read.
bool begins_as_binary(const fs::path& path) {
  char beginning[8000];
  std::ifstream file(path, std::ios::binary);
  file.read(beginning, sizeof beginning);
  return std::find(beginning, beginning + file.gcount(), '\0') != beginning + file.gcount();
}

// The paths below the folder of what is to be read, with '/' between their parts.
std::vector<std::string> paths_in(const fs::path& folder, const std::vector<std::string>& include, FolderText& read) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) {
    if (is_hidden(at->path())) {
      ++read.hidden;
      if (at->is_directory()) at.disable_recursion_pending();
    } else if (at->is_symlink()) {
      ++read.links;
    } else if (at->is_regular_file()) {
      std::string path = at->path().lexically_relative(folder).generic_string();
      if (matches(path, include)) {
        paths.push_back(std::move(path));
      } else {
        ++read.not_included;
      }
    }
  }
  if (error) fail("--file {}: cannot be read: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::vector<std::string> folder_paths(const fs::path& folder, const std::vector<std::string>& include) {
  FolderText uncounted;
  return paths_in(folder, include, uncounted);
}

FolderText read_folder(const fs::path& folder, const std::vector<std::string>& include) {
  FolderText read;
  for (const std::string& path : paths_in(folder, include, read)) {
    const fs::path file = folder / path;
    const bool binary = begins_as_binary(file);
    std::string bytes = binary ? "" : offload::read_file_bytes("--file", file);
    if (binary || !is_text(bytes)) {
      read.no_text.push_back(path);
      continue;
    }
    bytes = checked_text("--file " + file.string(), std::move(bytes));  // without a byte order mark
    ++read.files;
    read.text += fmt::format("=== {} ===\n", visible(path, Lines::joined));
    read.text += bytes;
    if (!bytes.empty() && bytes.back() != '\n') read.text += '\n';
    read.text += '\n';
  }
  return read;
}

std::string describe(const fs::path& folder, const FolderText& read) {
  std::string line = fmt::format("{}: {} file{}, {}", visible(folder.string(), Lines::joined), read.files,
                                 read.files == 1 ? "" : "s", format_bytes(read.text.size()));
  if (!read.no_text.empty()) {
    constexpr std::size_t shown = 5;
    const std::size_t count = std::min(shown, read.no_text.size());
    std::vector<std::string> first;
    for (std::size_t i = 0; i < count; ++i) first.push_back(visible(read.no_text[i], Lines::joined));
    line += fmt::format("; left out: {} no text ({}{})",
                        read.no_text.size() == 1 ? "1 is" : fmt::format("{} are", read.no_text.size()),
                        fmt::join(first, ", "), read.no_text.size() > shown ? ", ..." : "");
  }
  const auto add = [&](int count, const char* what) {
    if (count > 0) line += fmt::format("; {} {}", count, what);
  };
  add(read.hidden, "hidden");
  add(read.links, read.links == 1 ? "symbolic link" : "symbolic links");
  add(read.not_included, "not of --include");
  return line;
}

}  // namespace hayloft::cli
