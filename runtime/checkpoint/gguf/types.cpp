#include "runtime/checkpoint/gguf/types.h"

#include <fmt/format.h>

#include <cstdlib>

namespace hayloft::runtime::gguf {
namespace {

constexpr TypeTraits types[] = {
    {TensorType::f32, "F32", 1, 4},           {TensorType::f16, "F16", 1, 2},
    {TensorType::bf16, "BF16", 1, 2},         {TensorType::q4_0, "Q4_0", 32, 18},
    {TensorType::q4_1, "Q4_1", 32, 20},       {TensorType::q5_0, "Q5_0", 32, 22},
    {TensorType::q5_1, "Q5_1", 32, 24},       {TensorType::q8_0, "Q8_0", 32, 34},
    {TensorType::q2_k, "Q2_K", 256, 84},      {TensorType::q3_k, "Q3_K", 256, 110},
    {TensorType::q4_k, "Q4_K", 256, 144},     {TensorType::q5_k, "Q5_K", 256, 176},
    {TensorType::q6_k, "Q6_K", 256, 210},     {TensorType::iq4_nl, "IQ4_NL", 32, 18},
    {TensorType::iq4_xs, "IQ4_XS", 256, 136}, {TensorType::mxfp4, "MXFP4", 32, 17},
};

// Types that ggml has and that are not read.
constexpr struct {
  std::uint32_t number;
  const char* name;
} others[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},
};

}  // namespace

std::span<const TypeTraits> supported_types() {
  return types;
}

const TypeTraits* find_type(std::uint32_t number) {
  for (const TypeTraits& type : types) {
    if (static_cast<std::uint32_t>(type.type) == number) return &type;
  }
  return nullptr;
}

const TypeTraits& traits(TensorType type) {
  const TypeTraits* found = find_type(static_cast<std::uint32_t>(type));
  if (!found) std::abort();
  return *found;
}

std::string type_name(std::uint32_t number) {
  if (const TypeTraits* type = find_type(number)) return type->name;
  for (const auto& other : others) {
    if (other.number == number) return other.name;
  }
  return fmt::format("{}", number);
}

std::string supported_type_names() {
  std::string names;
  for (const TypeTraits& type : types) {
    if (!names.empty()) names += &type == std::end(types) - 1 ? " and " : ", ";
    names += type.name;
  }
  return names;
}

}  // namespace hayloft::runtime::gguf
