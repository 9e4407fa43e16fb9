#pragma once

#include <memory>

#include "gpu/backend.h"
#include "gpu/device_options.h"
#include "offload/error.h"

// The backends there are.
namespace hayloft::gpu {

// The reference and the default. Its device memory is ordinary memory, without a budget of its own. threads must
// outlive it. It alone multiplies in another way than exactly.
std::unique_ptr<Backend> make_cpu_backend(const offload::Threads& threads, Products products = Products::exact);

// Thrown by make_cuda_backend when this build or this machine has no CUDA device at all, as opposed to one that cannot
// be used as asked: whoever is free to choose takes the CPU backend and need not trouble the user.
class NoDevice : public Error {
 public:
  using Error::Error;
};

// Thrown by a backend whose device is lost to this process: every further call fails until the process ends, so whoever
// serves others ends it and is started again.
class DeviceLost : public Error {
 public:
  using Error::Error;
};

// Returns how many CUDA devices this process sees, which CudaOptions::device counts.
int cuda_devices() noexcept;

// Throws Error saying why when there is no CUDA device that can be used as asked, NoDevice when there is none at all.
// threads must outlive the backend and the arenas that pin through it. Every thread that calls the backend has its CUDA
// device set, and keeps it.
std::unique_ptr<Backend> make_cuda_backend(const offload::Threads& threads, const CudaOptions& options = {});

}  // namespace hayloft::gpu
