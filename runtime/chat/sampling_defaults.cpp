#include "runtime/chat/sampling_defaults.h"

#include <fmt/format.h>

#include "runtime/chat/sampling_defaults_files.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime {

std::string SamplingRange::text() const {
  return fmt::format("a number from {} to {}", least, most);
}

SamplingDefaults sampling_defaults(const std::filesystem::path& model) {
  return gguf::is_file(model) ? sampling_defaults_of_gguf(model) : sampling_defaults_of_folder(model);
}

}  // namespace hayloft::runtime
