#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "gpu/backend.h"
#include "gpu/device_options.h"
#include "offload/host/arena.h"
#include "offload/host/threads.h"
#include "offload/host/topology.h"

namespace hayloft::python {

// The part of the machine that the package computes with: threads, and the CPU or a CUDA device.
struct Machine {
  // threads 0: all processors. device "auto", "cpu" or "cuda". Bytes 0: what is free. Throws Error, also where
  // the device does not multiply as `products` says.
  Machine(int threads, const std::string& device, std::uint64_t host_memory, const gpu::CudaOptions& options,
          gpu::Products products = gpu::Products::exact);

  // Memory for K and V, within the budget. The machine must outlive it.
  std::unique_ptr<offload::Arena> make_arena() const;

  offload::Topology topology;
  offload::Threads threads;
  std::unique_ptr<gpu::Backend> backend;
  std::uint64_t host_memory;
};

}  // namespace hayloft::python
