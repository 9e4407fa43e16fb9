#include "runtime/checkpoint/gguf/file.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/map_file.h"

namespace hayloft::runtime::gguf {
namespace {

constexpr std::int64_t most_parts = 99999;  // five digits in the name
constexpr std::int64_t most_tensors = (std::int64_t{1} << 31) - 1;
constexpr const char* tensors_key = "split.tensors.count";  // of all parts together

std::int64_t part_number(const Metadata& metadata) {
  return metadata.integer_or("split.no", 0, 0, most_parts);
}
std::int64_t part_count(const Metadata& metadata) {
  return metadata.integer_or("split.count", 1, 0, most_parts);
}

// "-00002-of-00003.gguf"
std::string suffix(std::int64_t number, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

// Returns what the parts' names have in common.
std::string common_name(const std::filesystem::path& first, std::int64_t count) {
  const std::string name = first.filename().string();
  const std::string end = suffix(0, count);
  if (name.size() <= end.size() || name.substr(name.size() - end.size()) != end) {
    fail("{}: is the first of {} parts; its name must end in {} for the others to be found", first.string(), count,
         end);
  }
  return name.substr(0, name.size() - end.size());
}

}  // namespace

File::File(const std::filesystem::path& path) {
  const auto open = [&](const std::filesystem::path& part) {
    paths_.push_back(part);
    files_.push_back(map_file(part));
    Parsed parsed = parse(files_.back()->bytes(), part.string());
    files_.back()->check();
    header_bytes_.push_back(parsed.data_begin);
    return parsed;
  };
  Parsed first = open(path);
  metadata_ = std::move(first.metadata);
  tensors_ = std::move(first.tensors);
  const std::int64_t count = part_count(metadata_);
  if (part_number(metadata_) != 0) {
    fail("{}: is part {} of {}; name the first part, NAME{}", path.string(), part_number(metadata_) + 1, count,
         suffix(0, count));
  }
  if (count <= 1) return;

  const std::string name = common_name(path, count);
  for (std::int64_t i = 1; i < count; ++i) {
    Parsed part = open(path.parent_path() / (name + suffix(i, count)));
    if (part_number(part.metadata) != i || part_count(part.metadata) != count) {
      fail("{}: says it is part {} of {}; by its name it is part {} of {}", part.metadata.file(),
           part_number(part.metadata) + 1, part_count(part.metadata), i + 1, count);
    }
    const std::int64_t of_all = metadata_.integer_or(tensors_key, -1, 0, most_tensors);
    if (of_all >= 0 && part.metadata.integer_or(tensors_key, of_all, 0, most_tensors) != of_all) {
      part.metadata.refuse(tensors_key, fmt::format("{}, as in the first part: it is of another model", of_all));
    }
    tensors_.merge(part.tensors);
    if (!part.tensors.empty()) {  // what could not be merged
      fail("{}: has tensor {}, which an earlier part has too", part.metadata.file(),
           printable(part.tensors.begin()->first));
    }
  }
  const auto total = static_cast<std::int64_t>(tensors_.size());
  if (metadata_.integer_or(tensors_key, total, 0, most_tensors) != total) {
    metadata_.refuse(tensors_key, fmt::format("{}, which the parts hold together", total));
  }
}

const Tensor* File::find(std::string_view name) const {
  const auto tensor = tensors_.find(name);
  return tensor == tensors_.end() ? nullptr : &tensor->second;
}

bool is_file(const std::filesystem::path& model) {
  std::error_code error;  // is said where the file is opened
  return !std::filesystem::is_directory(model, error);
}

}  // namespace hayloft::runtime::gguf
