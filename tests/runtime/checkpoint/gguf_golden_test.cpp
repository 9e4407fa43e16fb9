#include <gtest/gtest.h>

#include <cstring>

#include "runtime/checkpoint/gguf/file.h"

// tests/golden/gguf/types.gguf, made by scripts/make-gguf-goldens.py: blocks of each type beside what the `gguf`
// package makes of them.
namespace hayloft::runtime::gguf {
namespace {

std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  dequantise(tensor.type, tensor.data, values.data());
  return values;
}

TEST(GgufGolden, EveryTypeDequantisesToTheBitsOfTheGgufPackage) {
  const File file(std::filesystem::path(HAYLOFT_SOURCE_DIR) / "tests/golden/gguf/types.gguf");
  for (const TypeTraits& type : supported_types()) {
    SCOPED_TRACE(type.name);
    if (type.type == TensorType::f32) continue;  // the others' expectation
    const Tensor* tensor = file.find(type.name);
    const Tensor* expected = file.find(std::string(type.name) + ".f32");
    ASSERT_TRUE(tensor && expected);
    ASSERT_EQ(tensor->type, type.type);
    ASSERT_EQ(tensor->shape, expected->shape);
    const std::vector<float> got = values_of(*tensor);
    const std::vector<float> want = values_of(*expected);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0)
          << "element " << i << ": " << got[i] << " instead of " << want[i];
    }
  }
}

}  // namespace
}  // namespace hayloft::runtime::gguf
