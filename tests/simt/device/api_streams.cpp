#include <algorithm>
#include <chrono>
#include <memory>

#include "tests/simt/device/runtime.h"

// Streams and events.
namespace hayloft::simt {
namespace {

double now_milliseconds() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

cudaError_t create(const char* function, cudaEvent_t* event, unsigned flags) {
  return api(function, [&](Runtime&) {
    if (!event || flags > (cudaEventBlockingSync | cudaEventDisableTiming)) return cudaErrorInvalidValue;
    *event = new CUevent_st{Runtime::current(), nullptr, (flags & cudaEventDisableTiming) == 0};
    return cudaSuccess;
  });
}

}  // namespace
}  // namespace hayloft::simt

using hayloft::simt::api;
using hayloft::simt::give_back;
using hayloft::simt::Opened;
using hayloft::simt::Record;
using hayloft::simt::Runtime;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return api("cudaStreamCreateWithFlags", [&](Runtime& runtime) {
    if (!stream || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
    *stream = runtime.create_stream();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return give_back("cudaStreamDestroy", [&](Runtime& runtime) {
    if (!runtime.known(stream)) return cudaErrorInvalidResourceHandle;
    const cudaError_t error = runtime.wait(stream);
    runtime.destroy_stream(stream);
    return error;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return api("cudaStreamSynchronize", [&](Runtime& runtime) {
    if (!runtime.known(stream)) return cudaErrorInvalidResourceHandle;
    return runtime.wait(stream);
  });
}

// A query runs one operation, so that whoever polls gets there.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return api("cudaStreamQuery", [&](Runtime& runtime) {
    if (!runtime.known(stream)) return cudaErrorInvalidResourceHandle;
    const Opened opened(runtime.memory);
    runtime.run_one();
    return stream->queue.empty() ? runtime.sticky : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return api("cudaStreamWaitEvent", [&](Runtime& runtime) {
    if (!runtime.known(stream) || !event) return cudaErrorInvalidResourceHandle;
    if (event->latest && !event->latest->done) stream->queue.push_back({nullptr, event->latest});
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return hayloft::simt::create("cudaEventCreate", event, cudaEventDefault);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return hayloft::simt::create("cudaEventCreateWithFlags", event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return give_back("cudaEventDestroy", [&](Runtime&) {
    if (!event) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return api("cudaEventRecord", [&](Runtime& runtime) {
    if (!runtime.known(stream) || !event || event->device != stream->device) return cudaErrorInvalidResourceHandle;
    auto record = std::make_shared<Record>();
    event->latest = record;
    runtime.queue(stream, [record] {
      record->milliseconds = hayloft::simt::now_milliseconds();
      record->done = true;
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return api("cudaEventSynchronize", [&](Runtime& runtime) {
    if (!event) return cudaErrorInvalidResourceHandle;
    if (!event->latest) return cudaSuccess;
    const auto record = event->latest;
    return runtime.wait([&] { return record->done; });
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return api("cudaEventElapsedTime", [&](Runtime&) {
    if (!milliseconds || !start || !end || !start->timing || !end->timing || !start->latest || !end->latest) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!start->latest->done || !end->latest->done) return cudaErrorNotReady;
    // Never zero, of which rates would be infinite.
    *milliseconds = static_cast<float>(std::max(end->latest->milliseconds - start->latest->milliseconds, 1e-3));
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return api("cudaDeviceSynchronize", [](Runtime& runtime) { return runtime.wait_all(); });
}
