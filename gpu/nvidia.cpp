#include "gpu/nvidia.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "gpu/link.h"

namespace hayloft::gpu {
namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string first_word(const fs::path& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

// Returns the names in a folder in order; none where it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_device_node(const std::string& name) {
  constexpr std::string_view prefix = "nvidia";  // nvidiactl and nvidia-uvm are of the driver, not of a card
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         std::all_of(name.begin() + prefix.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

bool is_wsl(const fs::path& root) {
  std::string version = file_text(root / "proc/version");
  std::transform(version.begin(), version.end(), version.begin(), [](unsigned char c) { return std::tolower(c); });
  return version.find("microsoft") != std::string::npos;
}

bool is_nvidia(const fs::path& pci_device) {
  return first_word(pci_device / "vendor") == "0x10de";
}

enum class Iommu { none, passes, translates, unknown };

// Returns what the IOMMU does with the addresses of NVIDIA's devices.
Iommu iommu_of_gpu(const fs::path& root) {
  const fs::path groups = root / "sys/kernel/iommu_groups";
  Iommu found = Iommu::none;
  for (const std::string& group : names_in(groups)) {
    const std::vector<std::string> devices = names_in(groups / group / "devices");
    const auto nvidia = [&](const std::string& name) { return is_nvidia(groups / group / "devices" / name); };
    if (std::none_of(devices.begin(), devices.end(), nvidia)) continue;
    const std::string type = first_word(groups / group / "type");
    if (type.starts_with("DMA")) return Iommu::translates;  // DMA-FQ as well
    found = type.empty() ? Iommu::unknown : Iommu::passes;
  }
  return found;
}

}  // namespace

fs::path system_root() {
  const char* const given = std::getenv("HAYLOFT_SYSTEM_ROOT");
  return given != nullptr && *given != '\0' ? given : "/";
}

std::string nvidia_gpu(const fs::path& root) {
  const std::vector<std::string> nodes = names_in(root / "dev");
  const auto node = std::find_if(nodes.begin(), nodes.end(), is_device_node);
  const std::string driver = file_text(root / "proc/driver/nvidia/version");
  std::string shown;
  if (node != nodes.end()) shown = "/dev/" + *node;
  if (shown.empty() && !driver.empty()) shown = "/proc/driver/nvidia";
  // Under WSL the card is Windows': its driver comes as libraries, its node is that of any vendor's card.
  if (shown.empty() && fs::exists(root / "dev/dxg") && fs::exists(root / "usr/lib/wsl/lib/libcuda.so.1")) {
    shown = "/usr/lib/wsl/lib/libcuda.so.1";
  }
  const std::string version = driver_version_in(driver);
  return shown.empty() || version.empty() ? shown : shown + ", driver " + version;
}

std::vector<std::string> link_cautions(const fs::path& root) {
  std::vector<std::string> cautions;
  const Iommu iommu = iommu_of_gpu(root);
  if (iommu == Iommu::translates) {
    cautions.emplace_back(
        "the IOMMU translates every address of host memory that the GPU reads, which slows scattered rows and columns; "
        "boot with iommu=pt on the kernel's command line");
  } else if (iommu == Iommu::unknown) {
    cautions.emplace_back(
        "an IOMMU stands between the GPU and host memory, and the system does not say whether it translates addresses, "
        "which slows scattered rows and columns; iommu=pt on the kernel's command line makes it pass them on");
  }
  if (is_wsl(root)) {
    cautions.emplace_back(
        "this is WSL: Windows may move device memory into host memory without a word when it runs short; set the CUDA "
        "system memory fallback policy of the NVIDIA control panel to none, and name a --gpu-memory that other "
        "programs "
        "leave free");
  }
  return cautions;
}

}  // namespace hayloft::gpu
