#include "tests/simt/ptx/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "tests/simt/device/memory.h"
#include "tests/simt/ptx/launch_counts.h"
#include "tests/simt/ptx/opcodes/approximation.h"

namespace hayloft::simt::ptx {
namespace {

// The kernels of all files, parsed when they are launched first.
class Library {
 public:
  explicit Library(const std::vector<std::filesystem::path>& folders) {
    for (const auto& folder : folders) {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".ptx") files.push_back(entry.path());
      }
      std::sort(files.begin(), files.end());
      if (files.empty()) throw std::runtime_error(fmt::format("{} has no .ptx files", folder.string()));
      for (const auto& file : files) {
        modules_.push_back(std::make_unique<Module>(Module::read(file)));
        for (const std::string& name : modules_.back()->kernels()) by_name_.emplace(name, modules_.back().get());
      }
    }
  }

  struct Entry {
    const Module* module;
    Kernel kernel;
  };
  const Entry& find(const std::string& name) {
    const auto parsed = parsed_.find(name);
    if (parsed != parsed_.end()) return parsed->second;
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) throw std::runtime_error("no PTX file has this kernel");
    return parsed_.emplace(name, Entry{found->second, found->second->kernel(name)}).first->second;
  }

 private:
  std::vector<std::unique_ptr<Module>> modules_;
  std::map<std::string, const Module*> by_name_;  // one of them where several files have a kernel of a header
  std::map<std::string, Entry> parsed_;
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {
    options_.run.traffic = !options_.costs_file.empty();
    if (!options_.folders.empty()) library_ = std::make_unique<Library>(options_.folders);
    set_approximation_ulp(options_.approximation_ulp);
  }
  ~Launcher() {
    write(options_.counts_file, counts_line);
    write(options_.reached_file, reached_line);
    write(options_.costs_file, costs_line);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  bool enabled() const { return library_ != nullptr; }

  std::string launch(const std::string& name, const Grid& grid, std::span<const std::span<const std::byte>> arguments,
                     std::size_t shared_limit, const Memory& memory, std::mt19937_64& random) {
    const Library::Entry& entry = library_->find(name);
    const Kernel& kernel = entry.kernel;
    if (kernel.static_shared_bytes + grid.shared_bytes > shared_limit) {
      return fmt::format("{} bytes of static and {} of dynamic shared memory, {} at most", kernel.static_shared_bytes,
                         grid.shared_bytes, shared_limit);
    }
    std::vector<std::byte> parameters = lay_out(kernel, arguments);
    const auto find_piece = [&memory](std::uint64_t address) {
      const auto [begin, end] = memory.reachable(address);
      if (begin == end) return AddressRange{};
      const bool pinned = memory.place(reinterpret_cast<const void*>(address), 1) == MemoryPlace::pinned;
      return AddressRange{begin, end, pinned};
    };
    const RunResult result = run_kernel(*entry.module, kernel, grid, parameters, find_piece, options_.run, random);
    counts_[name].add(grid, result);
    return result.failure;
  }

 private:
  // A line per kernel at the end of the file, if there is to be one.
  template <class Line>
  void write(const std::string& file, const Line& line) const {
    if (file.empty()) return;
    std::ofstream out(file, std::ios::app);
    for (const auto& [name, counts] : counts_) {
      const Library::Entry& entry = library_->find(name);
      out << line(counts, entry.module->name(), entry.kernel) << '\n';
    }
  }

  static std::vector<std::byte> lay_out(const Kernel& kernel, std::span<const std::span<const std::byte>> arguments) {
    if (arguments.size() != kernel.parameters.size()) {
      throw std::runtime_error(
          fmt::format("{} arguments, the PTX has {} parameters", arguments.size(), kernel.parameters.size()));
    }
    std::vector<std::byte> bytes(kernel.parameter_bytes, std::byte{0xd5});
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const Parameter& parameter = kernel.parameters[i];
      if (arguments[i].size() != parameter.bytes) {
        throw std::runtime_error(
            fmt::format("argument {} has {} bytes, the PTX's parameter {}", i, arguments[i].size(), parameter.bytes));
      }
      std::memcpy(bytes.data() + parameter.offset, arguments[i].data(), parameter.bytes);
    }
    return bytes;
  }

  LaunchOptions options_;
  std::unique_ptr<Library> library_;
  std::map<std::string, LaunchCounts> counts_;
};

std::unique_ptr<Launcher>& launcher() {
  static auto launcher = std::make_unique<Launcher>(options_from_environment());
  return launcher;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

LaunchOptions options_from_environment() {
  LaunchOptions options;
  std::istringstream folders(environment("HAYLOFT_PTX"));
  for (std::string folder; std::getline(folders, folder, ':');) options.folders.emplace_back(folder);
  if (const std::string name = environment("HAYLOFT_PTX_SCHEDULE"); !name.empty()) {
    const std::optional<ScheduleKind> kind = schedule_named(name);
    if (!kind) throw std::invalid_argument(fmt::format("HAYLOFT_PTX_SCHEDULE={} is not known", name));
    options.run.schedule = *kind;
  }
  if (const std::string name = environment("HAYLOFT_PTX_RACES"); !name.empty()) {
    const std::map<std::string, Races> known{
        {"ignored", Races::ignored}, {"shared", Races::shared}, {"all", Races::all}};
    const auto found = known.find(name);
    if (found == known.end()) throw std::invalid_argument(fmt::format("HAYLOFT_PTX_RACES={} is not known", name));
    options.run.races = found->second;
  }
  options.approximation_ulp = static_cast<unsigned>(std::strtoul(environment("HAYLOFT_PTX_ULP").c_str(), nullptr, 10));
  options.counts_file = environment("HAYLOFT_PTX_COUNTS");
  options.reached_file = environment("HAYLOFT_PTX_REACHED");
  options.costs_file = environment("HAYLOFT_PTX_COSTS");
  return options;
}

void use(const LaunchOptions& options) {
  launcher() = std::make_unique<Launcher>(options);
}
bool enabled() {
  return launcher()->enabled();
}

std::string launch(const std::string& kernel, const Grid& grid, std::span<const std::span<const std::byte>> arguments,
                   std::size_t shared_limit, const Memory& memory, std::mt19937_64& random) {
  try {
    return launcher()->launch(kernel, grid, arguments, shared_limit, memory, random);
  } catch (const std::exception& error) {
    return fmt::format("PTX: {}", error.what());
  }
}

}  // namespace hayloft::simt::ptx
