#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/host/mapped_file.h"

#include "gpu/backend.h"

namespace hayloft::runtime {

// One tensor inside a mapped file. `data` lives as long as the file object.
struct TensorView {
  std::string dtype;  // as safetensors writes it: F32, F16, BF16, F64, I32, I64, U8, ...
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;

  std::int64_t elements() const;
};

// A .safetensors file, mapped read-only. The header is checked whole before anything is trusted: its length, JSON,
// dtypes, that every tensor's bytes match its shape, lie inside the file and do not overlap. Throws Error naming file
// and tensor.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const TensorView& at(std::string_view name) const;  // throws Error naming the file when there is no such tensor
  bool contains(std::string_view name) const { return tensors_.contains(name); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::unique_ptr<const offload::MappedFile> mapping_;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

// Checks and lists the tensors of a safetensors image in memory (the same checks; `name` is used in messages).
std::map<std::string, TensorView, std::less<>> parse_safetensors(std::span<const std::byte> file,
                                                                 const std::string& name);

// Elements of a floating tensor (F64, F32, F16, BF16) as f32. Throws Error on another dtype.
std::vector<float> to_f32(const TensorView& tensor, const std::string& name);

// One tensor of a file to be written; a view of its data.
struct TensorToWrite {
  std::string name;
  std::string dtype;  // F32 or I32
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

// Writes through a temporary name in the same folder, synced and renamed, so that a failure leaves no half-written
// file.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors);

}  // namespace hayloft::runtime
