#pragma once

#include <filesystem>
#include <string>
#include <vector>

// The system itself shows an NVIDIA GPU, without CUDA: so that a GPU which a build or a driver cannot use is
// not left idle without a word. Every function looks under `root` in place of /.
namespace hayloft::gpu {

// Returns /, or the folder that the environment variable HAYLOFT_SYSTEM_ROOT names, where tests lay out dev, proc and
// sys.
std::filesystem::path system_root();

// Returns what shows that an NVIDIA GPU is here, as in "/dev/nvidia0, driver 580.65.06"; empty when nothing does.
std::string nvidia_gpu(const std::filesystem::path& root = system_root());

// Returns a sentence for each thing about this system that slows or misleads what an NVIDIA GPU reads of host memory,
// with what to do about it: an IOMMU that translates its addresses, WSL.
std::vector<std::string> link_cautions(const std::filesystem::path& root = system_root());

}  // namespace hayloft::gpu
