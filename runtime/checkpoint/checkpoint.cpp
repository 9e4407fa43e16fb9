#include "runtime/checkpoint/checkpoint.h"

#include "runtime/checkpoint/checkpoint_formats.h"
#include "runtime/checkpoint/gguf/file.h"

namespace hayloft::runtime {

std::unique_ptr<Checkpoint> Checkpoint::open(const std::filesystem::path& model) {
  return gguf::is_file(model) ? open_gguf_checkpoint(model) : open_folder_checkpoint(model);
}

}  // namespace hayloft::runtime
