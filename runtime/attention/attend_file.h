#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "offload/host/arena.h"
#include "offload/store/layout.h"
#include "runtime/attention/method.h"

// Any attention method on anyone's tensors, for papers and bug reports: the code of a decode step, on a cache that lies
// wholly in the store (no tail on the device).
namespace hayloft::runtime {

struct AttendOutput {
  MethodOptions attn;
  std::int64_t queries = 0;  // N
  std::int64_t tokens = 0;   // S
  int query_heads = 0;       // Hq
  int kv_heads = 0;          // Hkv
  int head_dim = 0;          // d
  std::int64_t window = 0;   // w at this length

  std::vector<float> y;                 // [N][Hq][d]
  std::vector<std::int32_t> positions;  // [N][lists][width], ascending, -1 behind the last; every position attended
  int lists = 0;                        // Hkv, Hq where selection is per query head, 0 where all positions are attended
  std::int64_t width = 0;               // k at this length, or what a wider --attn-window makes of it
  std::vector<float> alpha;             // [N][Hq], empty where the method has none
  std::vector<Counters> counters;       // [N]
};

// How K and V are kept.
struct AttendStore {
  int block_tokens = 4096;
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
};

// Called before the first query and after each with how many are done. Throw to stop.
using AttendProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// Reads `q` [N][Hq][d] (N independent decode queries over one cache) and `k`, `v` [Hkv][S][d], any float dtype, from a
// .safetensors file; other tensors are ignored. K and V are rounded to f16 on their way into the store. Throws Error
// naming file and tensor: one missing, of the wrong dtype or shape, holding NaN or what 16 bits cannot hold; and naming
// the option: k above S, r above d, not enough host memory.
AttendOutput attend_file(const std::filesystem::path& input, const MethodOptions& options, gpu::Backend& backend,
                         offload::Arena& arena, const AttendStore& store, const AttendProgress& progress = {});

// The tensors `y` f32, `positions` i32 and `alpha` f32, those that there are. Whole or not at all.
void write_attend_output(const std::filesystem::path& path, const AttendOutput& output);

// What was asked, and the counters of every query: schema hayloft.attend/1.
std::string attend_json(const AttendOutput& output);

}  // namespace hayloft::runtime
