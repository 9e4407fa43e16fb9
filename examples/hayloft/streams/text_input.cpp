#include "examples/hayloft/streams/text_input.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "offload/error.h"

namespace hayloft::cli {

std::string read_text(const std::string& option, const std::string& path) {
  std::ostringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
    return text.str();
  }
  if (std::filesystem::is_directory(path)) fail("{} {}: this is a folder", option, path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("{} {}: cannot be read: {}", option, path, std::generic_category().message(errno));
  text << file.rdbuf();
  if (file.bad()) fail("{} {}: cannot be read to its end", option, path);
  return text.str();
}

}  // namespace hayloft::cli
