#pragma once

#include <cstdint>

namespace hayloft::gpu {

class Backend;

// An order of execution. Default-constructed: the backend's own order; the CPU backend runs everything at once, in
// program order.
struct Stream {
  void* handle = nullptr;
};

// Owns device memory that Backend::allocate() gave; frees it on the stream it was allocated on, and must not outlive
// its backend. Movable, empty when default-constructed or moved from.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, void* data, std::uint64_t bytes, Stream stream);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  Stream stream_;
};

}  // namespace hayloft::gpu
