#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "gpu/make_backend.h"
#include "offload/host/threads.h"

namespace hayloft::testing {

class CpuOps : public ::testing::Test {
 protected:
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
};

}  // namespace hayloft::testing
