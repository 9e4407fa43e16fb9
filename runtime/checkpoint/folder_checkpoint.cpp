#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "offload/error.h"
#include "offload/json_file.h"
#include "runtime/checkpoint/alternating_experts.h"
#include "runtime/checkpoint/checkpoint_formats.h"
#include "runtime/checkpoint/fused.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {
namespace {

class FolderCheckpoint final : public Checkpoint, private FolderTensors {
 public:
  explicit FolderCheckpoint(const std::filesystem::path& directory);

  ModelConfig config() const override { return read_config(directory_); }
  bool contains(std::string_view name) const override { return tensors_.contains(stored_name(name)); }
  CheckpointTensor at(const std::string& usual_name, std::initializer_list<int> shape) override;
  std::vector<std::string> unread() const override;
  std::vector<std::string> of_other_parts() const override;
  std::string path() const override { return index_.string(); }
  const char* configuration() const override {
    return "options (model_type, num_hidden_layers, attention_bias, mlp_bias)";
  }
  void for_sizes_alone(bool alone) override { sizes_alone_ = alone; }

 private:
  const TensorView& read(const std::string& usual_name, std::initializer_list<std::int64_t> shape) override;
  const TensorView& take(const std::string& name, std::span<const std::int64_t> shape);
  void open_shards();
  void find_language_model();
  bool of_other_part(std::string_view name) const;
  std::string stored_name(std::string_view name) const;
  const ModelConfig& own_config();

  std::filesystem::path directory_;
  std::filesystem::path index_;                   // or the one file
  std::map<std::string, SafetensorsFile> files_;  // by name within the folder
  std::map<std::string, const TensorView*, std::less<>> tensors_;
  std::set<std::string, std::less<>> read_;
  std::optional<ModelConfig> config_;  // read when it is needed
  bool sizes_alone_ = false;
  // The prefix in place of "model." in the names of tensors where the language model is one part of several.
  std::string language_model_;
};

// Says what to do with a folder that has no weights which are read.
std::string remedy_for(const std::filesystem::path& directory) {
  std::error_code error;
  std::string gguf, pickle, adapter;
  std::filesystem::directory_iterator at(directory, error);
  for (const std::filesystem::directory_iterator end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    const std::string ending = at->path().extension().string();
    if (ending == ".gguf" && (gguf.empty() || name < gguf)) gguf = name;  // of several parts the first
    const bool weights = name.starts_with("pytorch_model") && ending == ".bin";
    if ((weights || ending == ".pth" || ending == ".pt") && (pickle.empty() || name < pickle)) pickle = name;
    if (name == "adapter_model.safetensors" || name == "adapter_model.bin") adapter = name;
  }
  if (!gguf.empty()) return fmt::format(", but {0}; name that file: -m {1}", gguf, (directory / gguf).string());
  if (!pickle.empty()) {
    return fmt::format(
        ", but {}, a pickle of Python, which is not read; have transformers write the model as safetensors: "
        "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)",
        pickle);
  }
  if (!adapter.empty()) {
    return fmt::format(", but {}, changes to the weights of another model, which are not read; merge them into it",
                       adapter);
  }
  return "";
}

FolderCheckpoint::FolderCheckpoint(const std::filesystem::path& directory) : directory_(directory) {
  const std::filesystem::path single = directory / "model.safetensors";
  index_ = directory / "model.safetensors.index.json";
  std::error_code error;
  if (std::filesystem::exists(single, error)) {
    index_ = single;
    for (const auto& [name, tensor] : files_.try_emplace("", single).first->second.tensors()) tensors_[name] = &tensor;
  } else if (std::filesystem::exists(index_, error)) {
    open_shards();
  } else {
    fail("{}: holds neither model.safetensors nor model.safetensors.index.json{}", directory.string(),
         remedy_for(directory));
  }
  find_language_model();
}

void FolderCheckpoint::open_shards() {
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
    tensors_[name] = &opened->second.at(name);
  }
}

constexpr std::string_view usual_prefix = "model.";

void FolderCheckpoint::find_language_model() {
  for (const char* prefix : {"model.language_model.", "language_model.model."}) {
    const auto first = tensors_.lower_bound(std::string_view(prefix));
    if (first != tensors_.end() && first->first.starts_with(prefix)) language_model_ = prefix;
  }
}

std::string FolderCheckpoint::stored_name(std::string_view name) const {
  if (language_model_.empty()) return std::string(name);
  if (name.starts_with(usual_prefix)) return language_model_ + std::string(name.substr(usual_prefix.size()));
  const std::string inside = "language_model." + std::string(name);  // lm_head
  return tensors_.contains(inside) ? inside : std::string(name);
}

const ModelConfig& FolderCheckpoint::own_config() {
  if (!config_) config_ = config();
  return *config_;
}

CheckpointTensor FolderCheckpoint::at(const std::string& usual_name, std::initializer_list<int> shape) {
  const std::string name = stored_name(usual_name);
  const bool in_layer = !tensors_.contains(name) && usual_name.find(".layers.") != std::string::npos;
  if (in_layer && own_config().experts.biases) {
    if (auto made = alternating_expert(usual_name, own_config(), sizes_alone_, *this)) return std::move(*made);
  }
  if (in_layer) {
    if (const auto part = fused_part(usual_name, own_config()); part && shape.size() == 2) {
      return take_part(*this, *part, columns_of(shape));
    }
    for (const FusedPart& place : expert_places(usual_name, own_config())) {
      if (contains(place.name)) return take_part(*this, place, columns_of(shape));
    }
  }
  const std::vector<std::int64_t> wanted(shape.begin(), shape.end());
  const TensorView& view = take(name, wanted);
  if (const auto type = float_type(view.dtype)) return {*type, view.data};
  fail("{}: tensor {} has dtype {}; it must be F32, F16 or BF16", index_.string(), name, view.dtype);
}

const TensorView& FolderCheckpoint::read(const std::string& usual_name, std::initializer_list<std::int64_t> shape) {
  return take(stored_name(usual_name), {shape.begin(), shape.size()});
}

// The tensor of that name in the files, which counts as read.
const TensorView& FolderCheckpoint::take(const std::string& name, std::span<const std::int64_t> shape) {
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

bool FolderCheckpoint::of_other_part(std::string_view name) const {
  constexpr std::string_view several_tokens = "mtp.";  // predicts them at once
  return name.starts_with(several_tokens) || (!language_model_.empty() && !name.starts_with(language_model_));
}

std::vector<std::string> FolderCheckpoint::unread() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (!read_.contains(name) && !of_other_part(name)) names.push_back(name);
  }
  return names;
}

std::vector<std::string> FolderCheckpoint::of_other_parts() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) {
    if (!read_.contains(name) && of_other_part(name)) names.push_back(name);
  }
  return names;
}

}  // namespace

std::optional<gguf::TensorType> float_type(std::string_view dtype) {
  if (dtype == "F32") return gguf::TensorType::f32;
  if (dtype == "F16") return gguf::TensorType::f16;
  if (dtype == "BF16") return gguf::TensorType::bf16;
  return std::nullopt;
}

std::unique_ptr<Checkpoint> open_folder_checkpoint(const std::filesystem::path& directory) {
  return std::make_unique<FolderCheckpoint>(directory);
}

}  // namespace hayloft::runtime
