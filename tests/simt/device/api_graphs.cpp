#include <algorithm>
#include <utility>

#include "tests/simt/device/runtime.h"

// Graphs of kernels: one that is launched runs its kernels in any order that honours what each depends on, with the
// arguments that they had when it was launched.

struct CUgraphNode_st {
  cudaLaunchConfig_t config{};
  const void* kernel = nullptr;
  hayloft::simt::BoundKernel bound;
  std::vector<std::size_t> behind;  // the places of nodes in the graph
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct CUgraphExec_st {
  int device = 0;
  const CUgraph_st* graph = nullptr;
  std::vector<CUgraphNode_st> nodes;
};

namespace hayloft::simt {
namespace {

cudaError_t bind(const Runtime& runtime, const cudaKernelNodeParams* parameters, CUgraphNode_st& node) {
  if (!parameters || !parameters->kernelParams || parameters->extra) return cudaErrorInvalidValue;
  const auto found = runtime.binders.find(parameters->func);
  if (found == runtime.binders.end()) return cudaErrorInvalidDeviceFunction;
  node.config.gridDim = parameters->gridDim;
  node.config.blockDim = parameters->blockDim;
  node.config.dynamicSmemBytes = parameters->sharedMemBytes;
  node.kernel = parameters->func;
  node.bound = found->second(parameters->func, parameters->kernelParams);
  return cudaSuccess;
}

// Returns the place of a node in a graph; that behind the last where it is not of the graph.
std::size_t place_of(const CUgraph_st& graph, cudaGraphNode_t node) {
  const auto found =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const auto& n) { return n.get() == node; });
  return static_cast<std::size_t>(found - graph.nodes.begin());
}

}  // namespace
}  // namespace hayloft::simt

using hayloft::simt::api;
using hayloft::simt::give_back;
using hayloft::simt::Runtime;

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return api("cudaGraphCreate", [&](Runtime&) {
    if (!graph || flags != 0) return cudaErrorInvalidValue;
    *graph = new CUgraph_st;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return give_back("cudaGraphDestroy", [&](Runtime&) {
    if (!graph) return cudaErrorInvalidValue;
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                                   std::size_t dependency_count, const cudaKernelNodeParams* parameters) {
  return api("cudaGraphAddKernelNode", [&](Runtime& runtime) {
    if (!node || !graph || (dependency_count > 0 && !dependencies)) return cudaErrorInvalidValue;
    auto made = std::make_unique<CUgraphNode_st>();
    for (std::size_t i = 0; i < dependency_count; ++i) {
      made->behind.push_back(hayloft::simt::place_of(*graph, dependencies[i]));
      if (made->behind.back() == graph->nodes.size()) return cudaErrorInvalidValue;
    }
    const cudaError_t result = hayloft::simt::bind(runtime, parameters, *made);
    if (result != cudaSuccess) return result;
    *node = made.get();
    graph->nodes.push_back(std::move(made));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return api("cudaGraphInstantiate", [&](Runtime&) {
    if (!exec || !graph || flags != 0) return cudaErrorInvalidValue;
    auto made = std::make_unique<CUgraphExec_st>();
    made->device = Runtime::current();
    made->graph = graph;
    for (const auto& node : graph->nodes) made->nodes.push_back(*node);
    *exec = made.release();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* parameters) {
  return api("cudaGraphExecKernelNodeSetParams", [&](Runtime& runtime) {
    if (!exec || !node) return cudaErrorInvalidValue;
    const std::size_t place = hayloft::simt::place_of(*exec->graph, node);
    if (place == exec->nodes.size()) return cudaErrorInvalidValue;
    // Another kernel may need what was not laid out for it.
    if (parameters && parameters->func != exec->nodes[place].kernel) return cudaErrorInvalidValue;
    return hayloft::simt::bind(runtime, parameters, exec->nodes[place]);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return api("cudaGraphLaunch", [&](Runtime& runtime) {
    if (!exec || !runtime.known(stream) || exec->device != stream->device) return cudaErrorInvalidResourceHandle;
    std::vector<char> done(exec->nodes.size());
    for (std::size_t launched = 0; launched < done.size(); ++launched) {
      std::vector<std::size_t> able;
      for (std::size_t i = 0; i < done.size(); ++i) {
        const auto& behind = exec->nodes[i].behind;
        if (!done[i] && std::ranges::all_of(behind, [&](std::size_t before) { return done[before] != 0; })) {
          able.push_back(i);
        }
      }
      const std::size_t next = able[runtime.random() % able.size()];
      cudaLaunchConfig_t config = exec->nodes[next].config;
      config.stream = stream;
      const cudaError_t result =
          hayloft::simt::queue_bound(runtime, config, exec->nodes[next].kernel, exec->nodes[next].bound);
      if (result != cudaSuccess) return result;
      done[next] = 1;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return give_back("cudaGraphExecDestroy", [&](Runtime&) {
    if (!exec) return cudaErrorInvalidValue;
    delete exec;
    return cudaSuccess;
  });
}
