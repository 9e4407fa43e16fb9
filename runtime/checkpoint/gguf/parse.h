#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/gguf/metadata.h"
#include "runtime/checkpoint/gguf/types.h"

namespace hayloft::runtime::gguf {

// One tensor inside a mapped file; `data` lives as long as the file object.
struct Tensor {
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  // the slowest dimension first: a matrix is [rows][cols]
  std::span<const std::byte> data;

  std::int64_t elements() const;
};
using Tensors = std::map<std::string, Tensor, std::less<>>;

struct Parsed {
  Metadata metadata;
  Tensors tensors;
  std::uint64_t data_begin = 0;  // where the tensors' data begin in the file
};

// A GGUF image in memory, version 2 or 3. Layout, little-endian: "GGUF", version u32, tensors u64, pairs u64; the pairs
// (key, value type u32, value; a text is its length u64 and its letters); the tensors (name, dimensions u32, their
// lengths u64 with the fastest first, type u32, offset u64); padding to general.alignment (32), from where offsets
// count. All of it is checked before anything is trusted: magic and version, every length against what is left, names
// given once, types, that rows are whole blocks, that each tensor is aligned, lies inside the file and overlaps no
// other. Throws Error, one line that begins with `file`.
Parsed parse(std::span<const std::byte> image, const std::string& file);

}  // namespace hayloft::runtime::gguf
