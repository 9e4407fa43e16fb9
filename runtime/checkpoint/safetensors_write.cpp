#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "offload/output_file.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const TensorView view{tensor.dtype, tensor.shape, tensor.data};
    if ((tensor.dtype != "F32" && tensor.dtype != "I32") ||
        static_cast<std::uint64_t>(view.elements()) * 4 != tensor.data.size() || header.contains(tensor.name)) {
      throw std::invalid_argument("write_safetensors: tensor " + tensor.name +
                                  " is named twice, or its data does not fill its shape in F32 or I32");
    }
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // data starts on a multiple of 8

  std::array<std::byte, 8> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i));
  offload::OutputFile file(path);
  file.write(length);
  file.write(text);
  for (const TensorToWrite& tensor : tensors) file.write(tensor.data);
  file.commit();
}

}  // namespace hayloft::runtime
