#pragma once

#include <filesystem>
#include <string>

// The network between ranks, as measured or as told.
namespace hayloft::runtime::plan {

// Between any two of the ranks.
struct Network {
  double gigabits_per_second = 10;
  double latency_us = 30;        // of a message
  bool within_machines = false;  // measured between ranks that share machines, and so of memory, in part or all of it
};
// "10,30", or a file as for read_network(). Throws Error naming --network.
Network parse_network(const std::string& text);
// Reads what `hayloft link` over ranks has measured and written as JSON. Throws Error naming the file.
Network read_network(const std::filesystem::path& path);

// Returns how many latencies a collective of N ranks takes: log2 N, rounded up.
int network_rounds(int ranks);

}  // namespace hayloft::runtime::plan
