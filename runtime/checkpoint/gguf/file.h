#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "offload/host/mapped_file.h"
#include "runtime/checkpoint/gguf/parse.h"

namespace hayloft::runtime::gguf {

// A model as a GGUF file, or as the several that gguf-split makes of one (NAME-00001-of-00003.gguf and so on, beside
// each other; the first holds the metadata). Mapped, not copied: tensors, texts and lists view the files as long as the
// object lives. Immutable and thread-safe.
class File {
 public:
  // Opens a file, or several, of which `path` is the first. Throws Error of one line: unreadable, damaged, unsupported
  // (see parse), or parts that are missing or do not belong together.
  explicit File(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return paths_.front(); }
  const std::vector<std::filesystem::path>& paths() const { return paths_; }  // all parts, in order
  // Says of each part how many bytes, of metadata and of the table of tensors, lie before the tensors' data.
  const std::vector<std::uint64_t>& header_bytes() const { return header_bytes_; }
  const Metadata& metadata() const { return metadata_; }
  const Tensors& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;  // null when there is none

 private:
  std::vector<std::filesystem::path> paths_;
  std::vector<std::uint64_t> header_bytes_;
  std::vector<std::unique_ptr<const offload::MappedFile>> files_;
  Metadata metadata_;
  Tensors tensors_;
};

// Returns whether what a user names as a model is read as GGUF: all that is no folder.
bool is_file(const std::filesystem::path& model);

}  // namespace hayloft::runtime::gguf
