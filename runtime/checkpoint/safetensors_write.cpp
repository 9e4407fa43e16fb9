#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "offload/output_file.h"
#include "runtime/checkpoint/safetensors.h"

namespace hayloft::runtime {
namespace {

std::uint64_t bytes_of(const TensorHeader& tensor) {
  const std::uint64_t width = tensor.dtype == "F32" || tensor.dtype == "I32" ? 4 : tensor.dtype == "F16" ? 2 : 0;
  if (width == 0) throw std::invalid_argument("SafetensorsWriter: tensor " + tensor.name + " in " + tensor.dtype);
  return width * static_cast<std::uint64_t>(TensorView{tensor.dtype, tensor.shape, {}}.elements());
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorHeader> tensors) {
  nlohmann::json header = nlohmann::json::object();
  for (const TensorHeader& tensor : tensors) {
    const std::uint64_t end = left_ + bytes_of(tensor);
    if (header.contains(tensor.name)) {
      throw std::invalid_argument("SafetensorsWriter: tensor " + tensor.name + " is named twice");
    }
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {left_, end}}};
    left_ = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // data starts on a multiple of 8
  std::array<std::byte, 8> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(text.size() >> (8 * i));
  file_ = std::make_unique<offload::OutputFile>(path);
  file_->write(length);
  file_->write(text);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(std::span<const std::byte> data) {
  if (data.size() > left_) throw std::invalid_argument("SafetensorsWriter: more data than the shapes hold");
  left_ -= data.size();
  file_->write(data);
}

void SafetensorsWriter::commit() {
  if (left_ > 0) throw std::invalid_argument("SafetensorsWriter: less data than the shapes hold");
  file_->commit();
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors) {
  std::vector<TensorHeader> headers;
  for (const TensorToWrite& tensor : tensors) {
    headers.push_back({tensor.name, tensor.dtype, tensor.shape});
    if (bytes_of(headers.back()) != tensor.data.size()) {
      throw std::invalid_argument("write_safetensors: the data of tensor " + tensor.name + " does not fill its shape");
    }
  }
  SafetensorsWriter writer(path, headers);
  for (const TensorToWrite& tensor : tensors) writer.write(tensor.data);
  writer.commit();
}

}  // namespace hayloft::runtime
