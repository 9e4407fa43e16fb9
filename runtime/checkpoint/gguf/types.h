#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

// The element types of GGUF tensors that are read, and what their bytes mean (ggml's quantisation formats). A tensor's
// rows are cut into blocks of `block_elements`, each of which fills `block_bytes`; no block crosses a row.
namespace hayloft::runtime::gguf {

// The numbers that files have for them.
enum class TensorType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  bf16 = 30,
  mxfp4 = 39,
};

struct TypeTraits {
  TensorType type;
  const char* name;  // as ggml writes it: F32, Q4_K, ...
  int block_elements;
  int block_bytes;
};

// All that are read.
std::span<const TypeTraits> supported_types();
// Null: not a type that is read.
const TypeTraits* find_type(std::uint32_t number);
const TypeTraits& traits(TensorType type);
// ggml's name of any type, read or not: "IQ2_XXS", "type 77".
std::string type_name(std::uint32_t number);
// "F32, F16, ... and MXFP4".
std::string supported_type_names();

// Whole blocks of `type` as f32, element by element what the `gguf` Python package's dequantize gives, to the bit.
// data: a multiple of block_bytes; out: [blocks * block_elements].
void dequantise(TensorType type, std::span<const std::byte> data, float* out);

}  // namespace hayloft::runtime::gguf
