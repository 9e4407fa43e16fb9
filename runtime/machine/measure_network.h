#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/machine/network.h"
#include "runtime/peers/communicator.h"

// Measures what the network between ranks gives, by the collectives that attention uses.
namespace hayloft::runtime::plan {

// One message: the median of several turns after one that is not counted, every payload checked. A turn takes as long
// as the rank that was last.
struct NetworkFigure {
  std::string what;                 // as in "dense, window"
  bool broadcast = false;           // else an all-gather
  std::uint64_t sent_bytes = 0;     // by each rank, or of a broadcast by the first
  std::uint64_t arrived_bytes = 0;  // at each of the others
  int turns = 0;
  double median_us = 0;
  double fastest_us = 0;
  double slowest_us = 0;

  double gigabits_per_second() const { return 8e-3 * static_cast<double>(arrived_bytes) / median_us; }
  // Returns whether another run may well say something else.
  bool unreliable() const { return turns < 4 || slowest_us - fastest_us > 0.25 * median_us; }
};

struct NetworkReport {
  int ranks = 1;
  std::vector<std::string> hosts;  // of the ranks, in their order
  std::string date;                // UTC
  std::string version;             // of hayloft
  std::vector<NetworkFigure> figures;

  // Return whether ranks share a machine, and so exchanged bytes in its memory; whether all of them do.
  bool share_machines() const;
  bool on_one_machine() const;
  // Returns what network_ms() takes: the latency that makes the smallest all-gather take as long as it did, the rate of
  // the largest.
  Network network() const;
};

struct NetworkOptions {
  double seconds = 10;       // about how long to measure
  std::string version = {};  // of the program that measures
};

// Told what is being measured, before it is.
using NetworkProgress = std::function<void(const std::string& what)>;

// Every rank makes this call and gets the same report. Throws Error when a payload arrives changed or a rank is lost.
NetworkReport measure_network(cluster::Communicator& ranks, const NetworkOptions& options,
                              const NetworkProgress& progress = {});

std::string network_table(const NetworkReport& report);  // Markdown
std::string network_csv(const NetworkReport& report);    // one row per figure
std::string network_json(const NetworkReport& report);   // schema "hayloft.network/1", read by read_network()

}  // namespace hayloft::runtime::plan
