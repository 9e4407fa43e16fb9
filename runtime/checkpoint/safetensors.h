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

namespace hayloft::offload {
class OutputFile;
}

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
// Elements [begin, begin + count) of it, counted in memory order.
std::vector<float> to_f32(const TensorView& tensor, std::int64_t begin, std::int64_t count, const std::string& name);

// The facts of a tensor in a file to be written.
struct TensorHeader {
  std::string name;
  std::string dtype;  // F32, I32 or F16
  std::vector<std::int64_t> shape;
};

// Writes a file whose tensors need not be in memory together: all headers first, then the data of each, in order and in
// pieces of any length. Through a temporary name in the same folder, synced and renamed by commit(), so that a failure
// leaves no half-written file. Throws Error; a name given twice, or data that does not fill the shapes, is a
// programmer's mistake: std::invalid_argument.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorHeader> tensors);
  ~SafetensorsWriter();
  void write(std::span<const std::byte> data);
  void commit();

 private:
  std::unique_ptr<offload::OutputFile> file_;
  std::uint64_t left_ = 0;  // bytes to come
};

// One tensor of a file to be written; a view of its data.
struct TensorToWrite {
  std::string name;
  std::string dtype;  // F32 or I32
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

// The same for tensors in memory.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors);

}  // namespace hayloft::runtime
