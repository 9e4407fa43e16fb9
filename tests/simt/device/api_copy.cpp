#include <cstring>
#include <memory>
#include <vector>

#include "tests/simt/device/runtime.h"

// Copies. Pageable memory is read during the call, as the driver's staging does; a copy to pageable memory is done when
// the call returns; all else happens when the stream gets there.
namespace hayloft::simt {
namespace {

struct Rows {
  std::size_t width = 0;
  std::size_t height = 1;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;

  std::size_t span(std::size_t pitch) const { return height == 0 ? 0 : (height - 1) * pitch + width; }
};

void copy_rows(void* to, const void* from, const Rows& rows) {
  for (std::size_t i = 0; i < rows.height; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + i * rows.to_pitch,
                static_cast<const std::byte*>(from) + i * rows.from_pitch, rows.width);
  }
}

// Returns whether memory at this place can be what the kind says. Pinned memory is the device's as well.
bool fits(MemoryPlace place, bool on_device) {
  return place == MemoryPlace::pinned || (place == MemoryPlace::device) == on_device;
}

cudaError_t check_places(const Memory& memory, const void* to, const void* from, const Rows& rows, cudaMemcpyKind kind,
                         MemoryPlace* to_place, MemoryPlace* from_place) {
  *to_place = memory.place(to, rows.span(rows.to_pitch));
  *from_place = memory.place(from, rows.span(rows.from_pitch));
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return cudaErrorInvalidMemcpyDirection;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return fits(*to_place, to_device) && fits(*from_place, from_device) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t copy_in_order(Runtime& runtime, void* to, const void* from, Rows rows, cudaMemcpyKind kind,
                          cudaStream_t stream) {
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  if (!to || !from || rows.width > rows.to_pitch || rows.width > rows.from_pitch) return cudaErrorInvalidValue;
  if (!runtime.known(stream)) return cudaErrorInvalidResourceHandle;
  MemoryPlace to_place{}, from_place{};
  if (const auto error = check_places(runtime.memory, to, from, rows, kind, &to_place, &from_place);
      error != cudaSuccess) {
    return error;
  }
  for (const void* side : {static_cast<const void*>(to), from}) {
    const int device = runtime.memory.device_of(side);
    if (device >= 0 && device != stream->device) return cudaErrorInvalidValue;
  }
  if (from_place != MemoryPlace::device && to_place == MemoryPlace::device)
    runtime.copied_to_device += rows.width * rows.height;
  if (from_place == MemoryPlace::device && to_place != MemoryPlace::device)
    runtime.copied_to_host += rows.width * rows.height;
  if (from_place == MemoryPlace::pageable) {
    auto captured = std::make_shared<std::vector<std::byte>>(rows.width * rows.height);
    Rows in = rows;
    in.to_pitch = rows.width;
    copy_rows(captured->data(), from, in);
    rows.from_pitch = rows.width;
    runtime.queue(stream, [to, captured, rows] { copy_rows(to, captured->data(), rows); });
  } else {
    runtime.queue(stream, [to, from, rows] { copy_rows(to, from, rows); });
  }
  const Spoiled& spoiled = runtime.spoiled;
  if (kind == spoiled.kind && rows.width >= spoiled.least && rows.width <= spoiled.most) {
    // In the middle of the last row.
    std::byte* const one = static_cast<std::byte*>(to) + rows.span(rows.to_pitch) - rows.width / 2 - 1;
    runtime.queue(stream, [one] { *one ^= std::byte{4}; });
  }
  if (to_place != MemoryPlace::pageable) return cudaSuccess;
  return runtime.wait(stream);
}

}  // namespace
}  // namespace hayloft::simt

using hayloft::simt::api;
using hayloft::simt::MemoryPlace;
using hayloft::simt::Opened;
using hayloft::simt::Runtime;

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return api("cudaMemcpyAsync", [&](Runtime& runtime) {
    return hayloft::simt::copy_in_order(runtime, to, from, {bytes, 1, bytes, bytes}, kind, stream);
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return api("cudaMemcpy2DAsync", [&](Runtime& runtime) {
    return hayloft::simt::copy_in_order(runtime, to, from, {width, height, to_pitch, from_pitch}, kind, stream);
  });
}

cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                                 cudaMemcpyAttributes* attributes, std::size_t* attribute_indices,
                                 std::size_t attribute_count, cudaStream_t stream) {
  return api("cudaMemcpyBatchAsync", [&](Runtime& runtime) {
    if (!to || !from || !bytes || count == 0 || !attributes || !attribute_indices || attribute_count == 0 ||
        attribute_count > count || attribute_indices[0] != 0) {
      return cudaErrorInvalidValue;
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto error = hayloft::simt::copy_in_order(runtime, to[i], from[i], {bytes[i], 1, bytes[i], bytes[i]},
                                                      cudaMemcpyDefault, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  return api("cudaMemsetAsync", [&](Runtime& runtime) {
    if (!runtime.known(stream)) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    if (runtime.memory.place(data, bytes) == MemoryPlace::pageable) return cudaErrorInvalidValue;
    runtime.queue(stream, [data, value, bytes] { std::memset(data, value, bytes); });
    return cudaSuccess;
  });
}
