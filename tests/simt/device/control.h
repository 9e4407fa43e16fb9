#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

// Declares what tests can ask of and do to the CUDA runtime of tests/simt. It is stricter than a device:
//
// - What is queued on a stream runs only when somebody waits (or a queue holds very much), and then operations of all
//   streams run in an order that is drawn from the seed and honours nothing but the streams and events: what lacks an
//   event comes out wrong for some seeds.
// - Memory of the device may be touched by operations only; a host access, one out of bounds, one before the memory was
//   allocated in stream order or after it was freed ends the process with the address sanitizer's report. Fresh memory
//   is full of NaN.
// - Pageable memory is read while the call that copies it runs; pinned memory when the copy's turn comes. No copy spans
//   two registrations, or registered memory and other.
// - Of several devices, a call uses the one that its thread has set (0 at first), and streams, events, memory and pools
//   that belong to another are refused, also where a device would take them.
// - Kernels need an explicit stream. A kernel that fails (tests/simt/device/machine.h) leaves its text on stderr and in
//   kernel_failure(), and every later call fails with cudaErrorLaunchFailure until reset().
namespace hayloft::simt {

// The environment variables HAYLOFT_SIMT_MULTIPROCESSORS and HAYLOFT_SIMT_SHARED_KIB change what reset() gives.
struct Device {
  int count = 1;
  int multiprocessors = 4;
  std::size_t shared_bytes = std::size_t{227} << 10;  // that a block may have when it asks for more than 48 KiB
  int major = 9, minor = 0;                           // compute capability; nothing else follows from it
  int driver_version = 13000;
  std::vector<std::string> cublas = {"libcublas.so.13"};  // the names that a library is found by
  std::uint64_t memory_bytes = std::uint64_t{4} << 30;
  std::uint64_t registrable_bytes = std::numeric_limits<std::uint64_t>::max();  // of host memory, pinned in any way
  std::uint64_t pinned_per_entry_byte = 0;  // bytes of host memory whose pinning takes a byte of the device; 0: none do
  std::uint64_t registration_bytes = std::numeric_limits<std::uint64_t>::max();  // at a time
};

// Back to the beginning: the default device, no faults, no errors, counters at zero, and this seed. Handles and memory
// stay; what is queued is dropped after an error and done otherwise.
void reset(std::uint64_t seed);
void reset();  // the seed of the environment variable HAYLOFT_SIMT_SEED, else 1
std::uint64_t seed();

Device& device();  // to be changed between calls

// The n-th call of this function from now on (1: the next) fails with this error and does nothing. An error that the
// real runtime keeps for good (an illegal address, a failed launch, a lost device) fails every later call as well.
void fail_call(std::string_view function, int n, cudaError_t error);
void fail_call(std::string_view function, int n, cublasStatus_t error);

// Copies of this kind whose rows have so many bytes arrive with one bit changed, until reset(): a link that lies.
void spoil_copies(cudaMemcpyKind kind, std::size_t least_row_bytes, std::size_t most_row_bytes);

// Kernels with this in their demangled name wait for the host. While one waits its turn, until reset(), none may be
// launched that was not launched before: a kernel is loaded at its first launch, for which CUDA may wait until the
// device is idle.
void holds_its_stream(std::string_view kernel);

std::string kernel_failure();  // of the kernel that failed, empty if none did

// Since reset().
std::int64_t calls(std::string_view function);
std::int64_t products(cudaDataType type);  // of cuBLAS, of matrices of this type
std::int64_t pool_growths();               // times that a pool of memory took more of the device
std::int64_t host_waits();                 // calls that waited for the device, whatever they were for
std::uint64_t copied_to_host();            // bytes that copies took from the device's memory to the host's
std::uint64_t copied_to_device();          // and the other way
std::int64_t uses(int device);             // calls that a thread made with this device set and that would open it
std::int64_t launches();
std::int64_t launches(std::string_view kernel);  // of kernels whose demangled name contains this

std::uint64_t device_bytes();            // allocated at present, of all devices
std::uint64_t device_bytes(int device);  // of one
std::uint64_t pinned_bytes();

}  // namespace hayloft::simt
