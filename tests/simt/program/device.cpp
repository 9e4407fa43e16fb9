#include "tests/simt/control.h"

// Linked into the program of tests/simt: its device is one on which a budget of 16 GiB is a small card's.
namespace hayloft::simt {
namespace {

const bool large = [] {
  device().memory_bytes = std::uint64_t{24} << 30;
  return true;
}();

}  // namespace
}  // namespace hayloft::simt
