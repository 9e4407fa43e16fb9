#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/api/check.h"

// Copies to and from host memory of which parts may have been pinned by different calls, or not at all. CUDA refuses a
// copy that crosses from one such part to another, so that these are cut there.
namespace hayloft::gpu::cuda {

class HostPins;  // gpu/cuda/memory/host_pins.h

void copy_to_device(const HostPins& pins, void* device, const void* host, std::uint64_t bytes, cudaStream_t stream);
void copy_to_host(const HostPins& pins, void* host, const void* device, std::uint64_t bytes, cudaStream_t stream);

// `rows` rows of `width` bytes, so far apart.
void copy_rows_to_device(const HostPins& pins, std::byte* device, std::uint64_t device_pitch, const std::byte* host,
                         std::uint64_t host_pitch, std::uint64_t width, std::uint64_t rows, cudaStream_t stream);

}  // namespace hayloft::gpu::cuda
