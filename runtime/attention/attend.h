#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "offload/host/arena.h"
#include "offload/store/store.h"
#include "runtime/attention/method.h"
#include "runtime/checkpoint/safetensors.h"

// Any attention method on anyone's tensors, for papers and bug reports: the code of a decode step, on a cache that lies
// wholly in the store (no tail on the device).
namespace hayloft::runtime {

// Tensors in anyone's memory, row-major, and where they come from, which messages begin with.
struct AttendTensors {
  std::string source;
  TensorView q;  // [N][Hq][d], N independent decode queries over one cache
  TensorView k;  // [Hkv][S][d]
  TensorView v;  // [Hkv][S][d]
};

struct AttendOutput {
  MethodOptions attn;
  MethodOptions by;          // of the method that attended: another one for `auto`
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

// Says how K and V are kept.
struct AttendStore {
  int block_tokens = 4096;
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  offload::RowFormat rows = offload::RowFormat::f16;
};

// Called before the first query and after each with how many are done. Throw to stop.
using AttendProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// Dtypes F64, F32, F16 or BF16, three dimensions each, none of them 0, that fit each other. Throws Error naming source
// and tensor.
void check_tensors(const AttendTensors& tensors);

// A store of one layer with K and V rounded to f16. Throws Error naming the element that is not finite in 16 bits, and
// when there is not enough host memory. The tensors have been checked.
offload::Store make_store(const AttendTensors& tensors, offload::Arena& arena, const AttendStore& how,
                          const offload::Threads& threads);

// Returns q, f32 [N][Hq][d]. Throws Error naming the query where an element is not finite, or so large that a score may
// not be. The tensors have been checked.
std::vector<float> finite_queries(const AttendTensors& tensors);

// Attends with each of the queries. Throws Error: what check_tensors(), finite_queries() and make_store() refuse; and
// naming the option: k above S or a list of k, r above d, rest=draw where no position is attended exactly.
AttendOutput attend(const AttendTensors& tensors, const MethodOptions& options, gpu::Backend& backend,
                    offload::Arena& arena, const AttendStore& store, const AttendProgress& progress = {});

}  // namespace hayloft::runtime
