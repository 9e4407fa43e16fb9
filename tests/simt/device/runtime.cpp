#include "tests/simt/device/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string_view>

#include "tests/simt/device/symbols.h"

namespace hayloft::simt {
namespace {

constexpr std::size_t most_queued = 4096;  // operations of one stream

// Errors after which the real runtime's context is lost.
bool lasting(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
      return true;
    default:
      return false;
  }
}

// All but what asks about devices, chooses one, or gives something back.
bool opens_a_device(std::string_view function) {
  static const std::set<std::string_view> others = {
      "cudaGetDeviceCount",     "cudaSetDevice",         "cudaGetDevice",        "cudaGetDeviceProperties",
      "cudaDeviceGetAttribute", "cudaDeviceGetPCIBusId", "cudaDriverGetVersion", "cudaRuntimeGetVersion",
      "cudaEventDestroy",       "cudaMemPoolDestroy",    "cudaFreeHost",         "cudaMemPoolGetAttribute"};
  return others.count(function) == 0;
}

std::uint64_t seed_from_environment() {
  const char* text = std::getenv("HAYLOFT_SIMT_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

Device device_from_environment() {
  Device device;
  if (const char* text = std::getenv("HAYLOFT_SIMT_MULTIPROCESSORS")) device.multiprocessors = std::atoi(text);
  if (const char* text = std::getenv("HAYLOFT_SIMT_SHARED_KIB")) {
    device.shared_bytes = std::strtoull(text, nullptr, 10) << 10;
  }
  return device;
}

}  // namespace

// Never destroyed: static objects of a test may free device memory at the very end.
Runtime& Runtime::instance() {
  static Runtime& runtime = []() -> Runtime& {
    auto& made = *new Runtime;
    made.reset(seed_from_environment());
    return made;
  }();
  return runtime;
}

int& Runtime::current() {
  thread_local int device = 0;
  return device;
}

int Runtime::fault(const char* function) {
  const std::int64_t call = ++calls[function];
  if (opens_a_device(function)) ++uses[current()];
  const auto found = faults.find(std::pair(std::string(function), call));
  return found == faults.end() ? 0 : found->second;
}

cudaError_t Runtime::enter(const char* function) {
  const auto error = static_cast<cudaError_t>(fault(function));
  return sticky != cudaSuccess ? sticky : error;
}

cublasStatus_t Runtime::enter_cublas(const char* function) {
  const auto error = static_cast<cublasStatus_t>(fault(function));
  return sticky != cudaSuccess ? CUBLAS_STATUS_EXECUTION_FAILED : error;
}

void Runtime::note(cudaError_t error) {
  if (error == cudaSuccess || error == cudaErrorNotReady) return;
  last_error = error;
  if (lasting(error) && sticky == cudaSuccess) {
    sticky = error;
    drop_queues();
  }
}

void Runtime::kernel_failed(const std::string& message) {
  failure = message;
  fmt::print(stderr, "simt: {} (seed {})\n", message, seed);
  note(cudaErrorLaunchFailure);
}

void Runtime::queue(cudaStream_t stream, std::function<void()> run) {
  stream->queue.push_back({std::move(run), nullptr});
  if (stream->queue.size() <= most_queued) return;
  const Opened opened(memory);
  while (stream->queue.size() > most_queued / 2 && run_one()) {
  }
}

void Runtime::queue_free(cudaStream_t stream, void* data) {
  std::pair<std::shared_ptr<PoolMemory>, std::uint64_t> piece;
  if (const auto found = pooled.find(data); found != pooled.end()) {
    piece = found->second;
    piece.first->free(piece.second, stream);
    pooled.erase(found);
  }
  const auto free = [this, data, stream, piece] {
    if (piece.first) {
      piece.first->arrive(piece.second, stream);
      pooled_bytes[piece.first->device()] -= piece.second;
    }
    if (!memory.release(data)) throw std::logic_error("simt: device memory freed twice");
  };
  if (sticky != cudaSuccess) return free();
  queue(stream, free);
  if (!stream->queue.empty()) stream->queue.back().frees = true;
}

std::uint64_t Runtime::left() const {
  std::uint64_t taken = memory.device_bytes(current());
  if (const auto found = pooled_bytes.find(current()); found != pooled_bytes.end()) taken -= found->second;
  for (const auto& pool : pools) {
    const std::shared_ptr<PoolMemory> held = pool.lock();
    if (held && held->device() == current()) taken += held->held();
  }
  return device.memory_bytes - std::min(device.memory_bytes, taken);
}

void Runtime::queue_kernel(cudaStream_t stream, const void* kernel, std::function<void()> run) {
  queue(stream, std::move(run));
  if (!stream->queue.empty()) stream->queue.back().kernel = kernel;
}

bool Runtime::held() const {
  if (holding.empty()) return false;
  return std::any_of(order_.begin(), order_.end(), [&](cudaStream_t stream) {
    return std::any_of(stream->queue.begin(), stream->queue.end(), [&](const Operation& operation) {
      return operation.kernel && function_name(operation.kernel).find(holding) != std::string::npos;
    });
  });
}

bool Runtime::runnable(cudaStream_t stream) const {
  return !stream->queue.empty() && (!stream->queue.front().after || stream->queue.front().after->done);
}

// Mostly the stream of last time: one that runs far ahead of the others, or stays far behind, shows more than fair
// turns would.
cudaStream_t Runtime::pick() {
  if (favourite_ && runnable(favourite_) && random() % 4 != 0) return favourite_;
  std::vector<cudaStream_t> able;
  std::copy_if(order_.begin(), order_.end(), std::back_inserter(able), [&](cudaStream_t s) { return runnable(s); });
  if (!able.empty()) favourite_ = able[random() % able.size()];
  return able.empty() ? nullptr : favourite_;
}

bool Runtime::run_one() {
  const cudaStream_t stream = pick();
  if (!stream) return false;
  const Operation operation = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (operation.run) operation.run();
  return true;
}

cudaError_t Runtime::wait(const std::function<bool()>& done) {
  if (done()) return sticky;
  ++host_waits;
  const Opened opened(memory);
  while (sticky == cudaSuccess && !done()) {
    // Streams wait only for what was recorded before, so that something can always run.
    if (!run_one()) throw std::logic_error("simt: waiting for what nobody has queued");
  }
  return sticky;
}

cudaError_t Runtime::wait(cudaStream_t stream) {
  return wait([&] { return stream->queue.empty(); });
}

cudaError_t Runtime::wait_all() {
  return wait(
      [&] { return std::all_of(order_.begin(), order_.end(), [](cudaStream_t s) { return s->queue.empty(); }); });
}

cudaStream_t Runtime::create_stream() {
  auto stream = std::make_unique<CUstream_st>();
  stream->device = current();
  order_.push_back(stream.get());
  const cudaStream_t handle = stream.get();
  streams_[handle] = std::move(stream);
  return handle;
}

void Runtime::destroy_stream(cudaStream_t stream) {
  if (favourite_ == stream) favourite_ = nullptr;
  std::erase(order_, stream);
  streams_.erase(stream);
}

void Runtime::drop_queues() {
  for (const cudaStream_t stream : order_) {
    for (const Operation& operation : stream->queue) {
      if (operation.frees) operation.run();
    }
    stream->queue.clear();
  }
}

void Runtime::reset(std::uint64_t new_seed) {
  wait_all();
  drop_queues();
  device = device_from_environment();
  seed = new_seed;
  random.seed(new_seed);
  last_error = sticky = cudaSuccess;
  failure.clear();
  calls.clear();
  faults.clear();
  host_waits = pool_growths = 0;
  copied_to_host = copied_to_device = 0;
  uses.clear();
  current() = 0;
  products.clear();
  launches.clear();
  holding.clear();
  spoiled = {};
  favourite_ = nullptr;
}

void reset(std::uint64_t seed) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  runtime.reset(seed);
}
void reset() {
  reset(seed_from_environment());
}
std::uint64_t seed() {
  return Runtime::instance().seed;
}
Device& device() {
  return Runtime::instance().device;
}

void fail_call(std::string_view function, int n, cudaError_t error) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  runtime.faults[{std::string(function), runtime.calls[std::string(function)] + n}] = error;
}
void fail_call(std::string_view function, int n, cublasStatus_t error) {
  fail_call(function, n, static_cast<cudaError_t>(error));
}

void spoil_copies(cudaMemcpyKind kind, std::size_t least_row_bytes, std::size_t most_row_bytes) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  runtime.spoiled = {kind, least_row_bytes, most_row_bytes};
}

void holds_its_stream(std::string_view kernel) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  runtime.holding = kernel;
}

std::string kernel_failure() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.failure;
}
std::int64_t calls(std::string_view function) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  const auto found = runtime.calls.find(function);
  return found == runtime.calls.end() ? 0 : found->second;
}
std::int64_t pool_growths() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.pool_growths;
}
std::int64_t host_waits() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.host_waits;
}
std::uint64_t copied_to_host() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.copied_to_host;
}
std::uint64_t copied_to_device() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.copied_to_device;
}
std::int64_t uses(int device) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.uses[device];
}
std::int64_t products(cudaDataType type) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  const auto found = runtime.products.find(type);
  return found == runtime.products.end() ? 0 : found->second;
}
std::uint64_t device_bytes() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.memory.device_bytes();
}
std::uint64_t device_bytes(int device) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.memory.device_bytes(device);
}
std::uint64_t pinned_bytes() {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return runtime.memory.pinned_bytes();
}

}  // namespace hayloft::simt
