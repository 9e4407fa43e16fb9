#include <cstdlib>

#include "offload/text/format.h"
#include "tests/simt/device/control.h"

// Linked into the program of tests/simt: its device is one on which a budget of 16 GiB is a small card's, unless
// HAYLOFT_SIMT_MEMORY gives it less. HAYLOFT_SIMT_DEVICES says how many there are, HAYLOFT_SIMT_LOST at which launch of
// a kernel the device is lost.
namespace hayloft::simt {
namespace {

const bool large = [] {
  const char* const memory = std::getenv("HAYLOFT_SIMT_MEMORY");
  device().memory_bytes = parse_bytes(memory ? memory : "24GiB");
  if (const char* const devices = std::getenv("HAYLOFT_SIMT_DEVICES")) device().count = std::atoi(devices);
  if (const char* const launch = std::getenv("HAYLOFT_SIMT_LOST")) {
    fail_call("cudaLaunchKernelEx", std::atoi(launch), cudaErrorECCUncorrectable);
  }
  return true;
}();

}  // namespace
}  // namespace hayloft::simt
