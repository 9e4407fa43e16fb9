#pragma once

#include <filesystem>

// The names under which files are written until they are whole. Thread-safe.
namespace hayloft::offload {

// A name in the folder of `target` that no other writer uses: .NAME.PID.N.partial.
std::filesystem::path temporary_name(const std::filesystem::path& target);

// Marks an open temporary file as somebody's, until its descriptor is closed: remove_abandoned() leaves it alone. Does
// nothing where the file system knows no locks.
void hold_temporary(int descriptor) noexcept;

// Removes files that a killed process left under temporary names of `target`: those whose process is gone and that
// nobody holds, be it from another machine that shares the folder. Never throws; what cannot be removed stays.
void remove_abandoned(const std::filesystem::path& target) noexcept;

// Makes a rename in `folder` last, as far as the system can.
void sync_folder(const std::filesystem::path& folder) noexcept;

}  // namespace hayloft::offload
