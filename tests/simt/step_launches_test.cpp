#include <filesystem>
#include <initializer_list>
#include <numeric>
#include <random>

#include "runtime/decode/session.h"
#include "tests/gpu/cuda/backends.h"
#include "tests/simt/device/control.h"
#include "tests/support/parameter_name.h"

// Counts what a decode step asks of the driver: kernels a layer, pieces of memory, waits, and in how many calls it is
// given its work. runtime/plan/gpu_roofline.cpp has the same numbers of kernels.
namespace hayloft::simt {
namespace {

using runtime::Model;
using runtime::Session;

struct Step {
  const char* name;
  const char* method;
  int kernels;  // of a layer, but for products of weights
  bool long_lists = false;
  bool kept = false;  // columns and rows, on the device
  gpu::Link link = gpu::Link::sm;
  int waits_of_layer = 0;
  bool fetched = false;  // columns, ahead, of which none are kept
  offload::ColumnFormat columns = offload::ColumnFormat::f16;
  // Calls that launch a graph, and all others that queue something: a kernel by itself, a copy, an event.
  int graphs = 3;
  int others = 3;
  int told_of_layer = 4;  // kernels of a layer's graphs, at most, whose arguments change
};

std::ostream& operator<<(std::ostream& out, const Step& step) {
  return out << step.name;
}

class StepLaunches : public ::testing::TestWithParam<Step> {
 protected:
  struct Asked {
    std::int64_t kernels = 0, pool_calls = 0, waits = 0, graphs = 0, made = 0, told = 0, others = 0;
  };
  static Asked asked() {
    const auto all = [](std::initializer_list<const char*> functions) {
      return std::accumulate(functions.begin(), functions.end(), std::int64_t{0},
                             [](std::int64_t sum, const char* function) { return sum + calls(function); });
    };
    return {launches() - launches("one_token_kernel"),
            all({"cudaMallocFromPoolAsync", "cudaMallocAsync", "cudaFreeAsync"}),
            host_waits(),
            calls("cudaGraphLaunch"),
            calls("cudaGraphInstantiate"),
            calls("cudaGraphExecKernelNodeSetParams"),
            all({"cudaLaunchKernelEx", "cudaMemcpyAsync", "cudaMemcpy2DAsync", "cudaMemcpyBatchAsync",
                 "cudaMemsetAsync", "cudaEventRecord", "cudaStreamWaitEvent"})};
  }

  const offload::Topology topology;
};

// Outside of layers: the flag and the token's row of the embedding go up, that is normed before the first layer, and
// the logits are looked through.
constexpr int outside_of_layers = 4;

TEST_P(StepLaunches, AreSoManyALayerInFewCallsAndTakeNoMemoryAndOneWait) {
  reset();
  gpu::CudaOptions device;
  if (GetParam().long_lists) device.short_list_keys = 0;
  if (GetParam().kept) device.column_cache_bytes = device.row_cache_bytes = std::uint64_t{16} << 20;
  if (GetParam().fetched) device.column_cache_bytes = 1;
  device.link.f16 = GetParam().link;
  const std::unique_ptr<gpu::Backend> cuda = testing::make_cuda(device);
  offload::ArenaOptions memory;
  memory.budget_bytes = std::uint64_t{64} << 20;
  memory.chunk_bytes = std::uint64_t{1} << 20;
  memory.listener = cuda->pinning();
  offload::Arena arena(topology, memory);
  const Model model(testing::golden_models() / "llama", *cuda);  // all of its three layers are global
  runtime::SessionOptions options;
  options.cache.block_tokens = 256;
  options.cache.window = 16;
  options.cache.columns = GetParam().columns;
  Session session(model, arena, options);
  std::vector<std::int32_t> tokens(600);
  std::mt19937 random(3);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 100);
  session.append(tokens);
  session.set_method(runtime::make_method(runtime::parse_method(GetParam().method, {}), model.config().head_dim));
  // These steps set up what is there once and what is asked for by its size, and have graphs made of their kernels.
  for (const std::int32_t token : {1, 2, 4, 5}) session.step(token);
  const Asked before = asked();
  session.step(3);
  const Asked after = asked();
  EXPECT_EQ(after.kernels - before.kernels, outside_of_layers + model.config().layers * GetParam().kernels);
  EXPECT_EQ(after.pool_calls, before.pool_calls);
  EXPECT_EQ(after.waits - before.waits, 1 + model.config().layers * GetParam().waits_of_layer);
  EXPECT_EQ(after.made, before.made);
  EXPECT_EQ(after.graphs - before.graphs, GetParam().graphs);
  EXPECT_LE(after.told - before.told, 1 + model.config().layers * GetParam().told_of_layer) << "and the token's row";
  EXPECT_EQ(after.others - before.others, GetParam().others);
}

Step with_calls(Step step, int graphs, int others, int told_of_layer = 4) {
  step.graphs = graphs;
  step.others = others;
  step.told_of_layer = told_of_layer;
  return step;
}

// Counted are keys and values that enter, attention to the newest tokens and its merge, silu, twice a sum with its
// norm, and a chunk of what is streamed. The copy engine wants to be told which columns it is to bring. A graph ends
// where the step has enough kernels, and before what is no kernel; what changes from token to token is where it stands
// (keys and values, the tail's scores, rows, their merge) and when a row was used.
INSTANTIATE_TEST_SUITE_P(
    Methods, StepLaunches,
    ::testing::Values(with_calls({"Dense", "dense", 7}, 5, 30),
                      with_calls({"DenseByCopies", "dense", 7, false, false, gpu::Link::copy}, 5, 30),
                      Step{"SparqOfShortLists", "sparq:r=4:k=32", 10},
                      with_calls({"SparqOfShortListsKept", "sparq:r=4:k=32", 11, false, true}, 3, 3, 5),
                      Step{"SparqOfLongLists", "sparq:r=4:k=32", 12, true},
                      with_calls({"SparqOfLongListsKept", "sparq:r=4:k=32", 13, true, true}, 3, 3, 5),
                      with_calls({"SparqOverPlanesKept", "sparq:r=4:k=32", 15, true, true, gpu::Link::sm, 0, false,
                                  offload::ColumnFormat::planes},
                                 3, 3, 6),
                      with_calls({"SparqByStrips", "sparq:r=4:k=2", 14, true, true}, 3, 3, 5),
                      with_calls({"SparqOfShortListsFetchedAhead", "sparq:r=4:k=32", 13, false, false, gpu::Link::sm, 0,
                                  true},
                                 6, 21),
                      with_calls({"SparqByCopies", "sparq:r=4:k=32", 14, true, false, gpu::Link::copy, 1}, 5, 57)),
    test::by_value);

}  // namespace
}  // namespace hayloft::simt
