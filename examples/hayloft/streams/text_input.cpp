#include "examples/hayloft/streams/text_input.h"

#include <unistd.h>

#include "offload/text_file.h"

namespace hayloft::cli {

std::string read_text(const std::string& option, const std::string& path) {
  if (path == "-") return offload::read_text(option + " -", STDIN_FILENO);
  return offload::read_text_file(option, path);
}

}  // namespace hayloft::cli
