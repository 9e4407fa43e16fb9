#include <algorithm>
#include <map>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/checkpoint_formats.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {
namespace {

class FolderCheckpoint final : public Checkpoint {
 public:
  explicit FolderCheckpoint(const std::filesystem::path& directory) : directory_(directory) {
    const std::filesystem::path single = directory / "model.safetensors";
    index_ = directory / "model.safetensors.index.json";
    std::error_code error;
    if (std::filesystem::exists(single, error)) {
      index_ = single;
      for (const auto& [name, tensor] : files_.try_emplace("", single).first->second.tensors()) found_[name] = &tensor;
    } else if (std::filesystem::exists(index_, error)) {
      open_shards();
    } else {
      fail("{}: holds neither model.safetensors nor model.safetensors.index.json", directory.string());
    }
  }

  ModelConfig config() const override { return read_config(directory_); }

  CheckpointTensor at(const std::string& name, std::initializer_list<int> shape) const override {
    const auto found = found_.find(name);
    if (found == found_.end()) fail("{}: has no tensor {}, which config.json calls for", index_.string(), name);
    const TensorView& tensor = *found->second;
    if (!std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end())) {
      fail("{}: tensor {} has shape [{}], but config.json calls for [{}]", index_.string(), name,
           fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
    }
    if (tensor.dtype == "F32") return {gguf::TensorType::f32, tensor.data};
    if (tensor.dtype == "F16") return {gguf::TensorType::f16, tensor.data};
    if (tensor.dtype == "BF16") return {gguf::TensorType::bf16, tensor.data};
    fail("{}: tensor {} has dtype {}; it must be F32, F16 or BF16", index_.string(), name, tensor.dtype);
  }

 private:
  void open_shards() {
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
      if (opened == files_.end()) opened = files_.try_emplace(shard, directory_ / shard).first;
      found_[name] = &opened->second.at(name);
    }
  }

  std::filesystem::path directory_;
  std::filesystem::path index_;  // the file to name in messages
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, const TensorView*> found_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_folder_checkpoint(const std::filesystem::path& directory) {
  return std::make_unique<FolderCheckpoint>(directory);
}

}  // namespace hayloft::runtime
