#include "python/src/machine.h"

#include <optional>

#include "gpu/make_backend.h"
#include "gpu/nvidia.h"
#include "python/src/bindings.h"

namespace hayloft::python {
namespace {

std::unique_ptr<gpu::Backend> make_backend(const std::string& device, const gpu::CudaOptions& options,
                                           const offload::Threads& threads, gpu::Products products) {
  if (device == "cpu") return gpu::make_cpu_backend(threads, products);
  if (device != "auto" && device != "cuda") fail("device '{}': must be one of auto, cpu, cuda", device);
  if (products != gpu::Products::exact && (device == "cuda" || gpu::cuda_devices() > 0)) {
    fail("products '{}': the CPU alone multiplies so; use device 'cpu' with it", gpu::name(products));
  }
  if (device == "cuda") return gpu::make_cuda_backend(threads, options);
  try {
    return gpu::make_cuda_backend(threads, options);
  } catch (const gpu::NoDevice& none) {
    if (const std::string gpu = gpu::nvidia_gpu(); !gpu.empty()) {
      const std::string said = "an NVIDIA GPU is here (" + gpu + "), but the CPU computes: " + none.what();
      if (PyErr_WarnEx(PyExc_RuntimeWarning, said.c_str(), 1) != 0) throw py::error_already_set();
    }
    return gpu::make_cpu_backend(threads, products);
  }
}

gpu::Products products_named(const std::string& text) {
  for (const gpu::Products products : {gpu::Products::exact, gpu::Products::int8}) {
    if (text == gpu::name(products)) return products;
  }
  fail("products '{}': must be one of exact, int8", text);
}

}  // namespace

Machine::Machine(int count, const std::string& device, std::uint64_t host, const gpu::CudaOptions& options,
                 gpu::Products products)
    : threads(count), backend(make_backend(device, options, threads, products)), host_memory(host) {}

std::unique_ptr<offload::Arena> Machine::make_arena() const {
  offload::ArenaOptions options;
  options.budget_bytes = host_memory;
  options.budget_option = "host_memory";
  options.listener = backend->pinning();
  return std::make_unique<offload::Arena>(topology, options);
}

void bind_machine(py::module_& module) {
  py::class_<Machine, std::shared_ptr<Machine>>(module, "Machine")
      .def(py::init([](int threads, const std::string& device, std::uint64_t host_memory, std::uint64_t gpu_memory,
                       std::optional<std::uint64_t> device_columns, std::optional<std::uint64_t> device_rows,
                       const std::string& products) {
             gpu::CudaOptions options;
             options.memory_bytes = gpu_memory;
             options.column_cache_bytes = device_columns.value_or(gpu::column_cache_rest);
             options.row_cache_bytes = device_rows.value_or(gpu::row_cache_rest);
             if (threads < 0) fail("threads {}: must be 0, as many as there are processors, or more", threads);
             return std::make_shared<Machine>(threads, device, host_memory, options, products_named(products));
           }),
           py::kw_only(), py::arg("threads") = 0, py::arg("device") = "auto", py::arg("host_memory") = 0,
           py::arg("gpu_memory") = 0, py::arg("device_columns") = 0, py::arg("device_rows") = 0,
           py::arg("products") = "exact")
      .def_property_readonly("threads", [](const Machine& machine) { return machine.threads.count(); })
      .def_property_readonly("device", [](const Machine& machine) { return machine.backend->name(); })
      .def_property_readonly("products", [](const Machine& machine) { return gpu::name(machine.backend->products()); })
      .def_property_readonly("description", [](const Machine& machine) { return machine.backend->description(); });
}

}  // namespace hayloft::python
