#include "examples/hayloft/options/machine.h"

#include <unistd.h>

#include <algorithm>
#include <bit>

#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "offload/host/topology.h"

namespace hayloft::cli {
namespace {

std::uint64_t read_memory(const std::string& option, const std::string& text) {
  const std::uint64_t bytes = read_bytes(option, text);
  if (bytes == 0) fail("{} {}: must be above 0", option, text);
  return bytes;
}

int read_block_tokens(const std::string& text) {
  constexpr int least = 16, most = 1 << 20;  // as the store takes them
  const int tokens = read_int("--block-tokens", text);
  if (tokens >= least && tokens <= most && std::has_single_bit(static_cast<unsigned>(tokens))) return tokens;
  fail("--block-tokens {}: must be a power of two from {} to {}", text, least, most);
}

void read_device(const std::string& text, MachineOptions& options) {
  const std::string prefix = "cuda:";
  options.cuda.device = 0;
  options.one_device = false;
  if (text == "auto" || text == "cpu" || text == "cuda") {
    options.device = text;
    return;
  }
  const std::string number = text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : "";
  if (number.empty() || number.size() > 4 || number.find_first_not_of("0123456789") != std::string::npos) {
    fail("--device {}: must be one of auto|cpu|cuda|cuda:N, where N counts the devices of --list-devices from 0", text);
  }
  options.device = "cuda";
  options.cuda.device = std::stoi(number);
  options.one_device = true;
}

void add_memory_options(CLI::App& app, MachineOptions& options) {
  add_text(
      app, "--host-memory", "BYTES",
      [&](const std::string& text) { options.host_memory = read_memory("--host-memory", text); },
      "Host memory for keys and values, as in 16GiB [90% of what is free]");
  add_text(
      app, "--gpu-memory", "BYTES",
      [&](const std::string& text) {
        options.cuda.memory_bytes = read_memory("--gpu-memory", text);
        options.for_cuda.emplace_back("--gpu-memory");
      },
      "cuda: device memory to use, as in 16GiB [nearly all that is free]");
  add_choice<gpu::KvHost>(
      app, "--kv-host",
      {{"auto", gpu::KvHost::automatic},
       {"pinned", gpu::KvHost::pinned},
       {"staged", gpu::KvHost::staged},
       {"mmap", gpu::KvHost::mmap}},
      "cuda: how keys and values lie in host memory: pinned, read by the device in place; staged, copied through a "
      "small pinned buffer; mmap, copied likewise from the file they were saved to",
      [&](gpu::KvHost kv_host) {
        options.cuda.kv_host = kv_host;
        options.for_cuda.emplace_back("--kv-host");
      })
      ->default_str("auto");
  add_text(
      app, "--block-tokens", "N", [&](const std::string& text) { options.block_tokens = read_block_tokens(text); },
      "Tokens per block of the store, a power of two from 16")
      ->default_str(options.block_tokens == 0 ? "by length" : "4096");
  common(app, Section::memory, {"--host-memory", "--gpu-memory"});
  advanced(app, Section::memory, {"--kv-host", "--block-tokens"});
}

void add_device_options(CLI::App& app, MachineOptions& options) {
  add_text(
      app, "--device", "auto|cpu|cuda|cuda:N", [&](const std::string& text) { read_device(text, options); },
      "Device that computes; auto prefers CUDA, cuda is cuda:0")
      ->default_str("auto");
  add_text(
      app, "-t,--threads", "N",
      [&](const std::string& text) {
        options.threads = read_int("--threads", text, 0);
        const int most = std::max(1024, 8 * offload::usable_processors());
        if (options.threads > most) fail("--threads {}: at most {}; 0 takes every processor", text, most);
      },
      "Threads, at most one per processor; 0 takes all")
      ->default_str("0");
  app.add_flag("--oversubscribe", options.oversubscribe,
               "Start as many --threads as asked for, whatever processors are there");
  add_choice<gpu::Link>(
      app, "--link",
      {{"auto", gpu::Link::automatic}, {"sm", gpu::Link::sm}, {"copy", gpu::Link::copy}, {"both", gpu::Link::both}},
      "cuda: what moves columns of keys over the link: the multiprocessors, which read them in place, the copy engine, "
      "or both",
      [&](gpu::Link link) {
        options.cuda.link = link;
        options.for_cuda.emplace_back("--link");
      })
      ->default_str("auto");
  common(app, Section::device, {"--device", "--threads"});
  advanced(app, Section::device, {"--link", "--oversubscribe"});
}

}  // namespace

int thread_count(const MachineOptions& options) {
  const int processors = offload::usable_processors();
  // Ranks that mpirun has not bound to processors of their own share the machine's.
  const bool shared = ranks_on_machine() > 1 && processors == ::sysconf(_SC_NPROCESSORS_ONLN);
  if (options.threads == 0 && shared) return std::max(1, processors / ranks_on_machine());
  if (options.threads <= processors) {
    if (options.oversubscribe)
      note("note: --oversubscribe has no effect: --threads asks for no more than {}\n", processors);
    return options.threads;
  }
  if (options.oversubscribe) return options.threads;
  note("note: --threads {}: this process may use {} processor{}, so {} thread{} (--oversubscribe starts all of them)\n",
       options.threads, processors, processors == 1 ? "" : "s", processors, processors == 1 ? "" : "s");
  return processors;
}

void note_unused_cuda(const MachineOptions& options, bool cpu_computes) {
  if (!cpu_computes || options.for_cuda.empty()) return;
  std::vector<std::string> given = options.for_cuda;
  std::sort(given.begin(), given.end());
  given.erase(std::unique(given.begin(), given.end()), given.end());
  note("note: {} {} no effect: not used by --device {}, but by cuda\n", fmt::join(given, ", "),
       given.size() == 1 ? "has" : "have", options.device == "cpu" ? "cpu" : "auto where no GPU computes");
}

void add_machine_options(CLI::App& app, MachineOptions& options) {
  add_memory_options(app, options);
  add_device_options(app, options);
  app.add_flag("-v,--verbose", options.verbose, "Print on standard error what of the machine is used");
  common(app, Section::output, {"--verbose"});
}

void add_device_cache_options(CLI::App& app, MachineOptions& options, DeviceCache otherwise) {
  const bool off = otherwise == DeviceCache::off;
  const auto add = [&](const std::string& name, std::uint64_t& bytes, std::uint64_t automatic, const char* help) {
    bytes = off ? 0 : automatic;
    add_text(
        app, name, "auto|BYTES|off",
        [name, &bytes, &options, automatic](const std::string& text) {
          bytes = text == "auto" ? automatic : text == "off" ? 0 : read_memory(name, text);
          if (text != "auto" && text != "off") options.for_cuda.push_back(name);
        },
        help)
        ->default_str(off ? "off" : "auto");
  };
  add("--device-columns", options.cuda.column_cache_bytes, gpu::column_cache_rest,
      "cuda: device memory for the key columns, or planes of them, that are read most; auto takes what is left of "
      "--gpu-memory");
  add("--device-rows", options.cuda.row_cache_bytes, gpu::row_cache_rest,
      "cuda: device memory for the keys and values of positions attended not long ago; auto takes a 32nd of "
      "--gpu-memory");
  advanced(app, Section::memory, {"--device-columns", "--device-rows"});
}

void add_step_graphs_option(CLI::App& app, MachineOptions& options) {
  add_choice<bool>(app, "--step-graphs", {{"on", true}, {"off", false}},
                   "cuda: launch the kernels of a token several at a time, as CUDA graphs; off launches each by itself",
                   [&](bool on) {
                     options.cuda.step_graphs = on;
                     options.for_cuda.emplace_back("--step-graphs");
                   })
      ->default_str("on");
  advanced(app, Section::device, {"--step-graphs"});
}

void add_profile_option(CLI::App& app, MachineOptions& options) {
  app.add_option("--profile", options.profile,
                 "Machine profile for predicted times and for --link auto [the one that hayloft link keeps]")
      ->type_name("FILE")
      ->take_last();
  advanced(app, Section::device, {"--profile"});
}

void add_weights_option(CLI::App& app, MachineOptions& options) {
  using runtime::WeightForm;
  add_choice<WeightForm>(
      app, "--weights",
      {{"stored", WeightForm::stored}, {"f16", WeightForm::f16}, {"q8", WeightForm::q8}, {"q4", WeightForm::q4}},
      "Matrices in memory: as in the model's files, in 16 bits, or those of 16 and 32 bits quantised "
      "while they are read",
      [&](WeightForm weights) { options.weights = weights; })
      ->default_str("stored");
  using runtime::ExpertPlace;
  add_choice<ExpertPlace>(
      app, "--experts",
      {{"auto", ExpertPlace::automatic},
       {"device", ExpertPlace::device},
       {"link", ExpertPlace::link},
       {"near", ExpertPlace::near}},
      "cuda: mixtures of experts in the device's memory; over the link, with those kept there that are asked for most; "
      "or near, in the machine's memory and multiplied by its processor; auto takes one of the others where the "
      "weights leave the device less than an eighth of its memory, and reads prompts over the link",
      [&](ExpertPlace experts) {
        options.experts = experts;
        if (experts != ExpertPlace::automatic) options.for_cuda.emplace_back("--experts");
      })
      ->default_str("auto");
  app.add_option(
         "--experts-held", options.experts_held,
         "Expect of experts over the link what a run's --attention-stats JSON says of those asked for, not that "
         "all are asked for alike")
      ->type_name("FILE")
      ->take_last();
  advanced(app, Section::model, {"--weights", "--experts", "--experts-held"});
}

void add_products_option(CLI::App& app, MachineOptions& options) {
  add_choice<gpu::Products>(
      app, "--products", {{"exact", gpu::Products::exact}, {"int8", gpu::Products::int8}},
      "Products with quantised weights: exact in f32, or faster with inputs rounded to 8 bits, cpu alone",
      [&](gpu::Products products) { options.products = products; })
      ->default_str("exact");
  advanced(app, Section::model, {"--products"});
}

void add_rows_option(CLI::App& app, offload::RowFormat& rows) {
  add_text(
      app, "--rows", "FORMAT", [&rows](const std::string& text) { rows = row_format(text); },
      "Keys and values: f16, int8, int4")
      ->default_str("f16");
  common(app, Section::memory, {"--rows"});
}

namespace {

// "Key columns: f16, int8, int4; planes where needed": a method that reads planes chooses them by itself.
std::string columns_help() {
  std::string whole, planes;
  for (const offload::ColumnTraits& traits : offload::column_traits) {
    std::string& names = traits.planes > 1 ? planes : whole;
    names += (names.empty() ? "" : ", ") + std::string(traits.name);
  }
  return fmt::format("Key columns: {}; {} where needed", whole, planes);
}

}  // namespace

void add_store_options(CLI::App& app, offload::ColumnFormat& columns, offload::RowFormat& rows) {
  add_text(
      app, "--columns", "FORMAT", [&columns](const std::string& text) { columns = column_format(text); },
      columns_help())
      ->default_str("f16");
  common(app, Section::memory, {"--columns"});
  add_rows_option(app, rows);
}

}  // namespace hayloft::cli
