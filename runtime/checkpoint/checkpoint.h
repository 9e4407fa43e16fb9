#pragma once

#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {

// The tensors of a Hugging Face folder by name, whichever shard they lie in: model.safetensors, or the files that
// model.safetensors.index.json names. Keeps account of what has been asked for. The files stay mapped as long as it
// lives. Not thread-safe.
class Checkpoint {
 public:
  // Throws Error naming the file: missing, damaged, or a shard that does not lie in the folder.
  explicit Checkpoint(const std::filesystem::path& directory);

  bool contains(std::string_view name) const { return tensors_.contains(name); }

  // Throws Error unless there is such a tensor of that shape.
  const TensorView& at(const std::string& name, std::initializer_list<int> shape);

  // The names of the tensors that `at` has never been called for, ascending.
  std::vector<std::string> unread() const;

  std::string path() const { return index_.string(); }  // of the file to name in messages

 private:
  void open_shards(const std::filesystem::path& directory);

  std::filesystem::path index_;
  std::map<std::string, SafetensorsFile> files_;  // by name within the folder
  std::map<std::string, const TensorView*, std::less<>> tensors_;
  std::set<std::string, std::less<>> read_;
};

// Whether two tensors of the same shape hold the same numbers, in whatever dtypes. Throws Error on a dtype that is not
// floating.
bool same_values(const TensorView& a, const TensorView& b);

}  // namespace hayloft::runtime
