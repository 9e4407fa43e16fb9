#pragma once

#include <filesystem>
#include <string>

#include "runtime/attention/attend.h"

// The files that `hayloft attend` reads and writes.
namespace hayloft::runtime {

// attend() on `q`, `k` and `v` of a .safetensors file; other tensors are ignored. Throws Error naming file and tensor.
AttendOutput attend_file(const std::filesystem::path& input, const MethodOptions& options, gpu::Backend& backend,
                         offload::Arena& arena, const AttendStore& store, const AttendProgress& progress = {});

// The tensors `y` f32, `positions` i32 and `alpha` f32, those that there are. Whole or not at all.
void write_attend_output(const std::filesystem::path& path, const AttendOutput& output);

// Writes what was asked, and the counters of every query: schema hayloft.attend/1.
std::string attend_json(const AttendOutput& output);

}  // namespace hayloft::runtime
