#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <system_error>

#include "offload/error.h"
#include "offload/json_file.h"

namespace hayloft::runtime {

Checkpoint::Checkpoint(const std::filesystem::path& directory) {
  const std::filesystem::path single = directory / "model.safetensors";
  index_ = directory / "model.safetensors.index.json";
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    index_ = single;
    for (const auto& [name, tensor] : files_.try_emplace("", single).first->second.tensors()) tensors_[name] = &tensor;
  } else if (std::filesystem::exists(index_, error)) {
    open_shards(directory);
  } else {
    fail("{}: holds neither model.safetensors nor model.safetensors.index.json", directory.string());
  }
}

void Checkpoint::open_shards(const std::filesystem::path& directory) {
  const nlohmann::json json = read_json_file(index_);
  const JsonFields fields(json, index_.string());
  const nlohmann::json* map = fields.find("weight_map");
  if (!map || !map->is_object()) fail("{}: weight_map must be an object of tensor and file names", index_.string());
  for (const auto& [name, file] : map->items()) {
    const std::string shard = JsonFields(*map, index_.string() + ": weight_map").text(name.c_str());
    // A shard lies beside its index: nothing in a downloaded file may reach elsewhere.
    if (shard.empty() || shard == "." || shard == ".." || shard.find_first_of("/\\\0", 0, 3) != std::string::npos) {
      fail("{}: weight_map puts tensor {} in {}, which is not a file name in this folder", index_.string(),
           printable(name), printable(shard));
    }
    auto opened = files_.find(shard);
    if (opened == files_.end()) opened = files_.try_emplace(shard, directory / shard).first;
    tensors_[name] = &opened->second.at(name);
  }
}

const TensorView& Checkpoint::at(const std::string& name, std::initializer_list<int> shape) {
  const auto tensor = tensors_.find(name);
  if (tensor == tensors_.end()) fail("{}: has no tensor {}, which config.json calls for", index_.string(), name);
  const std::vector<std::int64_t>& found = tensor->second->shape;
  if (!std::equal(found.begin(), found.end(), shape.begin(), shape.end())) {
    fail("{}: tensor {} has shape [{}], but config.json calls for [{}]", index_.string(), name, fmt::join(found, ", "),
         fmt::join(shape, ", "));
  }
  read_.insert(name);
  return *tensor->second;
}

std::vector<std::string> Checkpoint::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (!read_.contains(name)) names.push_back(name);
  }
  return names;
}

bool same_values(const TensorView& a, const TensorView& b) {
  if (a.dtype == b.dtype) return std::equal(a.data.begin(), a.data.end(), b.data.begin(), b.data.end());
  return to_f32(a, "a tensor") == to_f32(b, "a tensor");
}

}  // namespace hayloft::runtime
