#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/device_options.h"
#include "gpu/products.h"
#include "offload/store/layout.h"
#include "runtime/checkpoint/weights/expert_placement.h"

// Says what a command may use of the machine: memory, the device, threads.
namespace hayloft::cli {

struct MachineOptions {
  int threads = 0;                // 0: all processors this process may use
  bool oversubscribe = false;     // more threads than those, when `threads` says so
  std::string device = "auto";    // auto, cpu, cuda
  gpu::CudaOptions cuda;          // what of it `--device cuda` takes
  bool one_device = false;        // whether that names one of several, as cuda:N does
  std::uint64_t host_memory = 0;  // bytes for K and V; 0: what is free, less a tenth
  int block_tokens = 4096;        // 0, which cannot be asked for: a command chooses by the length of a context
  runtime::WeightForm weights = runtime::WeightForm::stored;
  runtime::ExpertPlace experts = runtime::ExpertPlace::automatic;
  std::string experts_held;  // a file; empty: all experts are asked for alike
  gpu::Products products = gpu::Products::exact;
  bool head = false;  // the model's head that predicts further tokens is loaded, too, for --draft mtp
  bool verbose = false;
  std::string profile;                     // a file; empty: the one that hayloft link keeps
  std::vector<std::string> for_cuda = {};  // the options given that say something of a CUDA device alone
};
// Says which options of a CUDA device were given where the processor computes.
void note_unused_cuda(const MachineOptions& options, bool cpu_computes);
// options.threads, or as many as there are processors where it is more and nobody insists; a line on standard error
// says so.
int thread_count(const MachineOptions& options);

void add_machine_options(CLI::App& app, MachineOptions& options);
// --device-columns and --device-rows, of commands that decode: off unless asked for where a command compares what
// methods read.
enum class DeviceCache : std::uint8_t { automatic, off };
void add_device_cache_options(CLI::App& app, MachineOptions& options, DeviceCache otherwise = DeviceCache::automatic);
void add_step_graphs_option(CLI::App& app, MachineOptions& options);  // --step-graphs, of commands that generate
void add_profile_option(CLI::App& app, MachineOptions& options);      // --profile
// --weights, --experts and --experts-held, of commands that take a model
void add_weights_option(CLI::App& app, MachineOptions& options);
void add_products_option(CLI::App& app, MachineOptions& options);  // --products, of commands that answer
void add_rows_option(CLI::App& app, offload::RowFormat& rows);     // --rows
// --columns and --rows
void add_store_options(CLI::App& app, offload::ColumnFormat& columns, offload::RowFormat& rows);

}  // namespace hayloft::cli
