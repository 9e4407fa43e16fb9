#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "offload/host/threads.h"
#include "offload/host/topology.h"

// Measures what the link between host memory and a GPU really gives. No CUDA in sight: without it measure_link()
// throws. One measurement at a time, or they measure each other; everything else here is thread-safe.
namespace hayloft::gpu {

struct LinkOptions {
  int device = 0;                         // CudaOptions::device
  std::vector<std::uint64_t> footprints;  // of host memory that is read; empty: 1, 4, 16 and 64 GiB as memory
                                          // and the time to pin them allow
  std::vector<std::string> tests = {};    // of link_tests(), by name; empty: all
};

// A thing that can be measured of a link, with a line on what it is.
struct LinkTest {
  const char* name;
  const char* what;
  bool reads_memory = true;  // of the host, over each footprint
};
inline constexpr LinkTest link_tests[] = {
    {"copies", "whole copies from host to device and back, by the copy engine, the multiprocessors and both"},
    {"both-ways", "copies from host to device and back at once, by the copy engine"},
    {"device-to-device", "copies within the device, and to and from the others, where there are any", false},
    {"columns", "runs of key columns, as a decode step fetches them"},
    {"rows", "scattered rows of keys and values"},
    {"latency", "a fetch of 16 bytes that waits for the one before"},
    {"launches", "a kernel that does nothing: queued ahead, as it is launched, and waited for", false},
};

// One figure: the median of several runs after a warm-up, every payload checked, where there is one.
struct LinkFigure {
  std::string test;                 // nvbandwidth's testcase name where it means the same
  std::string engine;               // "ce": the copy engine; "sm": the multiprocessors; "both"
  std::uint64_t page_bytes = 4096;  // of host memory; more: the system's explicit huge pages, unless `transparent`;
                                    // 0: no memory is read
  int node = -1;                    // NUMA node of the memory, as the system counts; -1: there is one
  std::uint64_t footprint_bytes = 0;
  int piece_bytes = 0;  // contiguous bytes of a column run or of a row; 0: everything in one piece
  std::string order;    // of rows: "ascending" or "random"
  double value = 0;
  std::string unit;          // "GB/s" (10^9 bytes that arrived), "ns"
  bool transparent = false;  // huge pages that the kernel gives to memory that wants them
  bool kv_pages = false;     // the pages and the node that keys and values of that size lie on here
  int runs = 0;              // that `value` is the median of; 0: it was counted, not timed
  double slowest = 0;        // run of them, in the same unit,
  double fastest = 0;        // and fastest

  // Returns whether another run may well say something else.
  bool unreliable() const { return runs > 0 && std::abs(fastest - slowest) > 0.25 * value; }
};

struct LinkReport {
  std::string device;  // in words
  std::string driver;  // CUDA version that the driver speaks, as in 13.0
  std::string runtime;
  int runtime_number = 0;      // the same as CUDA writes it, 13000
  std::string driver_version;  // of the driver itself, as in 580.65.06; empty: it does not say
  int generation = 0;          // of PCIe, and its lanes, at their most; 0: not known
  int lanes = 0;
  int node = -1;  // NUMA node the device is attached to
  std::vector<LinkFigure> figures;
  std::vector<std::string> skipped;  // what could not be measured, and why
};

// Told what is being measured, before it is, and given what has been so far.
using LinkProgress = std::function<void(const std::string& what, const LinkReport& so_far)>;

// Takes the largest footprint of host memory, and up to 1.5 GiB of the device's, and gives both back. Throws Error when
// there is no device, no memory, or a payload arrives changed.
LinkReport measure_link(const offload::Topology& topology, const offload::Threads& threads,
                        const LinkOptions& options = {}, const LinkProgress& progress = {});

// The driver's version in what it says of itself in /proc/driver/nvidia/version; empty when there is none.
std::string driver_version_in(const std::string& text);

// GB/s of data that PCIe of this generation and width can carry at most, each way, before protocol overhead.
double pcie_rate(int generation, int lanes);

}  // namespace hayloft::gpu
