#pragma once

#include "offload/error.h"

namespace hayloft::gpu {

// What make_cuda_backend throws when this build or this machine has no CUDA device at all, as opposed to one that
// cannot be used as asked: whoever is free to choose takes the CPU backend and need not trouble the user.
class NoDevice : public Error {
 public:
  using Error::Error;
};

}  // namespace hayloft::gpu
