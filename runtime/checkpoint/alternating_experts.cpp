#include "runtime/checkpoint/alternating_experts.h"

#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "offload/error.h"
#include "runtime/checkpoint/checkpoint_formats.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {
namespace {

constexpr int mxfp4_columns = 32;                    // of a scale
constexpr int mxfp4_code_bytes = mxfp4_columns / 2;  // of their codes

// One matrix among those of all experts: rows first, first + step, ... of an expert's `all`.
struct ExpertMatrix {
  std::string tensor;  // of all experts, without an ending
  int expert = 0;
  int first = 0;
  int step = 1;
  int rows = 0;
  int columns = 0;
  bool bias = false;

  std::int64_t all() const { return std::int64_t{rows} * step; }
};

std::optional<ExpertMatrix> find_matrix(std::string_view name, const ModelConfig& config) {
  constexpr std::string_view part = "mlp.experts.";
  const std::size_t at = name.find(part);
  if (at == std::string_view::npos) return std::nullopt;
  std::string prefix(name.substr(0, at + part.size()));
  name.remove_prefix(prefix.size());
  ExpertMatrix matrix;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), matrix.expert);
  if (error != std::errc() || matrix.expert < 0 || matrix.expert >= config.experts.count) return std::nullopt;
  name.remove_prefix(static_cast<std::size_t>(end - name.data()));
  matrix.bias = name.ends_with(".bias");
  const std::string_view kind = name.substr(0, name.rfind('.'));
  const bool gate = kind == ".gate_proj";
  if (!gate && kind != ".up_proj" && kind != ".down_proj") return std::nullopt;
  const bool down = kind == ".down_proj";
  matrix.tensor = std::move(prefix) + (down ? "down_proj" : "gate_up_proj");
  matrix.first = gate || down ? 0 : 1;
  matrix.step = down ? 1 : 2;
  matrix.rows = down ? config.hidden_size : config.experts.inner;
  matrix.columns = down ? config.experts.inner : config.hidden_size;
  return matrix;
}

// Gives a tensor made here its type, and memory.
std::byte* make_room(gguf::TensorType type, std::size_t bytes, CheckpointTensor& tensor) {
  std::shared_ptr<std::byte[]> memory = std::make_shared_for_overwrite<std::byte[]>(bytes);
  tensor.type = type;
  tensor.data = {memory.get(), bytes};
  tensor.memory = memory;
  return memory.get();
}

// GGUF's blocks have the exponent first, and elements i and i + 16 in a byte where these have 2 i and 2 i + 1.
CheckpointTensor from_mxfp4(const ExpertMatrix& matrix, bool sizes_alone, const std::byte* blocks,
                            const std::byte* scales) {
  CheckpointTensor tensor;
  const std::int64_t groups = matrix.columns / mxfp4_columns;
  std::byte* to = make_room(gguf::TensorType::mxfp4,
                            static_cast<std::size_t>(matrix.rows * groups * (mxfp4_code_bytes + 1)), tensor);
  for (std::int64_t row = 0; row < matrix.rows && !sizes_alone; ++row) {
    const std::int64_t first = (matrix.expert * matrix.all() + matrix.first + row * matrix.step) * groups;
    for (std::int64_t at = first; at < first + groups; ++at, to += mxfp4_code_bytes + 1) {
      to[0] = scales[at];
      const std::byte* const from = blocks + at * mxfp4_code_bytes;
      const auto code = [&](int i) { return (i % 2 == 0 ? from[i / 2] : from[i / 2] >> 4) & std::byte{15}; };
      for (int i = 0; i < mxfp4_code_bytes; ++i) to[1 + i] = code(i) | code(i + mxfp4_code_bytes) << 4;
    }
  }
  return tensor;
}

// Floats, of which each input's outputs lie together.
CheckpointTensor from_columns(const ExpertMatrix& matrix, bool sizes_alone, gguf::TensorType type, std::size_t element,
                              const std::byte* data) {
  CheckpointTensor tensor;
  const auto rows = static_cast<std::size_t>(matrix.rows), columns = static_cast<std::size_t>(matrix.columns);
  std::byte* const to = make_room(type, rows * columns * element, tensor);
  const auto all = static_cast<std::size_t>(matrix.all());
  data += static_cast<std::size_t>(matrix.expert) * columns * all * element;
  for (std::size_t column = 0; column < columns && !sizes_alone; ++column) {
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t from =
          column * all + static_cast<std::size_t>(matrix.first) + row * static_cast<std::size_t>(matrix.step);
      std::memcpy(to + (row * columns + column) * element, data + from * element, element);
    }
  }
  return tensor;
}

CheckpointTensor bias_of(const ExpertMatrix& matrix, gguf::TensorType type, std::size_t element,
                         const std::byte* data) {
  CheckpointTensor tensor;
  std::byte* to = make_room(type, static_cast<std::size_t>(matrix.rows) * element, tensor);
  data += static_cast<std::size_t>(matrix.expert * matrix.all() + matrix.first) * element;
  for (int row = 0; row < matrix.rows; ++row, to += element, data += static_cast<std::size_t>(matrix.step) * element) {
    std::memcpy(to, data, element);
  }
  return tensor;
}

}  // namespace

std::optional<CheckpointTensor> alternating_expert(std::string_view name, const ModelConfig& config, bool sizes_alone,
                                                   FolderTensors& folder) {
  const std::optional<ExpertMatrix> matrix = find_matrix(name, config);
  if (!matrix) return std::nullopt;
  const std::int64_t experts = config.experts.count, rows = matrix->all(), columns = matrix->columns;
  const std::string blocks = matrix->tensor + "_blocks", scales = matrix->tensor + "_scales";
  if (!matrix->bias && folder.contains(blocks)) {
    if (columns % mxfp4_columns != 0) {
      fail("{}: tensor {}: MXFP4 comes in groups of {}, and rows have {}", folder.path(), blocks, mxfp4_columns,
           columns);
    }
    const TensorView& of_codes = folder.read(blocks, {experts, rows, columns / mxfp4_columns, mxfp4_code_bytes});
    const TensorView& of_scales = folder.read(scales, {experts, rows, columns / mxfp4_columns});
    for (const TensorView* view : {&of_codes, &of_scales}) {
      if (view->dtype != "U8") fail("{}: tensor {} has dtype {}; it must be U8", folder.path(), blocks, view->dtype);
    }
    return from_mxfp4(*matrix, sizes_alone, of_codes.data.data(), of_scales.data.data());
  }
  const std::string own = matrix->bias ? matrix->tensor + "_bias" : matrix->tensor;
  if (!folder.contains(own)) return std::nullopt;
  const TensorView& view =
      matrix->bias ? folder.read(own, {experts, rows}) : folder.read(own, {experts, columns, rows});
  const std::optional<gguf::TensorType> type = float_type(view.dtype);
  if (!type) fail("{}: tensor {} has dtype {}; it must be F32, F16 or BF16", folder.path(), own, view.dtype);
  const std::size_t element = *type == gguf::TensorType::f32 ? 4 : 2;
  return matrix->bias ? bias_of(*matrix, *type, element, view.data.data())
                      : from_columns(*matrix, sizes_alone, *type, element, view.data.data());
}

}  // namespace hayloft::runtime
