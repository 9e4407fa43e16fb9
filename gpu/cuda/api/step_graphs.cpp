#include "gpu/cuda/api/step_graphs.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "gpu/cuda/api/device.h"

namespace hayloft::gpu::cuda {
namespace {

constexpr std::size_t kFirstKernels = 8;  // of a step, less than a layer
constexpr std::size_t kLeastKernels = 3;  // that are worth a graph
constexpr std::size_t kMostGraphs = 512;  // kept: two for each layer of a large model, for two shapes of its steps

bool same(const dim3& a, const dim3& b) {
  return a.x == b.x && a.y == b.y && a.z == b.z;
}

}  // namespace

// Has what belongs to one thread's step; the graphs' mutex guards its members.
class StepGraphs::Held final : public Step {
 public:
  explicit Held(StepGraphs& graphs) : graphs(graphs) { step_ = this; }
  ~Held() override {
    graphs.end(*this);
    leave();
  }
  void part_ends() override { graphs.part_ends(*this, false); }
  void ends() override {
    graphs.part_ends(*this, true);
    leave();
  }
  void rethrow() const {
    if (failure) std::rethrow_exception(failure);
  }

  void leave() const {
    if (step_ == this) step_ = nullptr;
  }

  StepGraphs& graphs;
  std::size_t wanted = kFirstKernels;  // for the next launch
  std::size_t place = 0;               // launches before it
  std::exception_ptr failure;          // of one of them
};

void StepGraphs::Kernels::clear() {
  kernels.clear();
  offsets.clear();
  bytes.clear();
}

std::size_t StepGraphs::Kernels::begin_of(std::size_t kernel) const {
  const std::size_t argument = kernel < kernels.size() ? kernels[kernel].first_argument : offsets.size();
  return argument < offsets.size() ? offsets[argument] : bytes.size();
}

std::vector<void*> StepGraphs::Kernels::pointers(const Kernel& kernel) {
  std::vector<void*> all;
  for (std::size_t i = 0; i < kernel.arguments; ++i) all.push_back(bytes.data() + offsets[kernel.first_argument + i]);
  return all;
}

bool StepGraphs::Kernels::same_functions(const Kernels& other) const {
  return std::equal(kernels.begin(), kernels.end(), other.kernels.begin(), other.kernels.end(),
                    [](const Kernel& a, const Kernel& b) { return a.function == b.function; });
}

// Bytes between the members of an argument may differ where the argument does not: then it is told once more.
bool StepGraphs::Kernels::same_arguments(std::size_t kernel, const Kernels& other) const {
  const Kernel &a = kernels[kernel], &b = other.kernels[kernel];
  const std::size_t begin = begin_of(kernel), end = begin_of(kernel + 1);
  return same(a.blocks, b.blocks) && same(a.threads, b.threads) && a.shared_bytes == b.shared_bytes &&
         begin == other.begin_of(kernel) && end == other.begin_of(kernel + 1) &&
         std::memcmp(bytes.data() + begin, other.bytes.data() + begin, end - begin) == 0;
}

StepGraphs::StepGraphs(int device, cudaStream_t stream, bool on) : device_(device), stream_(stream), on_(on) {
  const std::lock_guard lock(all_mutex_);
  all_.push_back(this);
}

StepGraphs::~StepGraphs() {
  const std::lock_guard lock(all_mutex_);
  std::erase(all_, this);
  for (auto& [key, graph] : graphs_) destroy(graph);
}

void StepGraphs::destroy(Graph& graph) noexcept {
  if (graph.ready) cudaGraphExecDestroy(graph.ready);
  if (graph.graph) cudaGraphDestroy(graph.graph);
  graph.ready = nullptr;
  graph.graph = nullptr;
  graph.nodes.clear();
}

std::unique_ptr<Step> StepGraphs::begin() {
  if (!on_ || step_ != nullptr) return nullptr;
  return std::make_unique<Held>(*this);
}

StepGraphs* StepGraphs::of_step(cudaStream_t stream) {
  return step_ != nullptr && step_->graphs.stream_ == stream ? &step_->graphs : nullptr;
}

void StepGraphs::launch_held_quietly(cudaStream_t stream) noexcept {
  // This thread has to come behind another one's kernels where something has ordered the two, and then it sees their
  // count as well.
  if (holding_ == 0) return;
  const std::lock_guard all(all_mutex_);
  for (StepGraphs* const graphs : all_) {
    if (stream != nullptr && graphs->stream_ != stream) continue;
    const std::lock_guard lock(graphs->mutex_);
    graphs->flush();
  }
}

void StepGraphs::launch_held(cudaStream_t stream) {
  launch_held_quietly(stream);
  StepGraphs* const own = of_step(stream);
  if (own == nullptr) return;
  const std::lock_guard lock(own->mutex_);
  step_->rethrow();
}

// Makes the calling thread's step the owner of what is held from here on.
void StepGraphs::take() {
  step_->rethrow();
  if (owner_ != step_) flush();
  if (owner_ == nullptr) ++holding_;
  owner_ = step_;
}

void StepGraphs::part_ends(Held& of, bool all) {
  const std::lock_guard lock(mutex_);
  if (owner_ == &of && (all || held_.kernels.size() >= of.wanted)) {
    flush();
    of.wanted = std::min(2 * of.wanted, most_kernels);
  }
  of.rethrow();
}

void StepGraphs::end(Held& of) noexcept {
  const std::lock_guard lock(mutex_);
  if (owner_ == &of) flush();
}

// Launches what is held, and leaves what goes wrong to the step that owns it.
void StepGraphs::flush() noexcept {
  if (owner_ == nullptr) return;
  try {
    HAYLOFT_CUDA(use_device(device_));
    if (held_.kernels.size() < kLeastKernels || !launched_as_graph()) launch_each();
  } catch (...) {
    owner_->failure = std::current_exception();
    ++lost_;
  }
  ++owner_->place;
  held_.clear();
  owner_ = nullptr;
  --holding_;
}

void StepGraphs::launch_each() {
  for (const Kernel& kernel : held_.kernels) {
    cudaLaunchConfig_t config{};
    config.gridDim = kernel.blocks;
    config.blockDim = kernel.threads;
    config.dynamicSmemBytes = kernel.shared_bytes;
    config.stream = stream_;
    check(kernel.launch(config, kernel.function, held_.pointers(kernel).data()), kernel.name);
  }
}

// Returns the graph of the kernels that are held, at this place of a step; a new one where there is none.
StepGraphs::Graph& StepGraphs::graph_of_held() {
  std::size_t key = owner_->place;
  for (const Kernel& kernel : held_.kernels) key = key * 31 + std::hash<const void*>()(kernel.function);
  if (graphs_.size() >= kMostGraphs && !graphs_.contains(key)) {
    const auto oldest = std::min_element(graphs_.begin(), graphs_.end(),
                                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    destroy(oldest->second);
    graphs_.erase(oldest);
  }
  Graph& graph = graphs_[key];
  graph.used = ++uses_;
  if (!graph.last.kernels.empty() && !graph.last.same_functions(held_)) {
    destroy(graph);
    graph = {};
    graph.used = uses_;
  }
  return graph;
}

cudaKernelNodeParams StepGraphs::node_of(const Kernel& kernel, std::vector<void*>& arguments) {
  cudaKernelNodeParams node{};
  node.func = const_cast<void*>(kernel.function);
  node.gridDim = kernel.blocks;
  node.blockDim = kernel.threads;
  node.sharedMemBytes = static_cast<unsigned>(kernel.shared_bytes);
  node.kernelParams = arguments.data();
  return node;
}

// Makes a graph of the kernels that are held, each behind the one before. Returns false where the driver refuses.
bool StepGraphs::make(Graph& graph) {
  cudaError_t result = cudaGraphCreate(&graph.graph, 0);
  for (const Kernel& kernel : held_.kernels) {
    if (result != cudaSuccess) return false;
    std::vector<void*> arguments = held_.pointers(kernel);
    const cudaKernelNodeParams parameters = node_of(kernel, arguments);
    const bool first = graph.nodes.empty();
    cudaGraphNode_t node = nullptr;
    result =
        cudaGraphAddKernelNode(&node, graph.graph, first ? nullptr : &graph.nodes.back(), first ? 0 : 1, &parameters);
    graph.nodes.push_back(node);
  }
  return result == cudaSuccess && cudaGraphInstantiate(&graph.ready, graph.graph, 0) == cudaSuccess;
}

// Tells a graph what has changed since it was launched last. Returns false where the driver refuses.
bool StepGraphs::update(Graph& graph) {
  for (std::size_t i = 0; i < held_.kernels.size(); ++i) {
    if (held_.same_arguments(i, graph.last)) continue;
    std::vector<void*> arguments = held_.pointers(held_.kernels[i]);
    const cudaKernelNodeParams parameters = node_of(held_.kernels[i], arguments);
    if (cudaGraphExecKernelNodeSetParams(graph.ready, graph.nodes[i], &parameters) != cudaSuccess) return false;
  }
  return true;
}

// Returns false where the kernels are to be launched one by one, as those of a graph that the driver has refused are
// from then on. Throws where it is not sure that none has been launched.
bool StepGraphs::launched_as_graph() {
  Graph& graph = graph_of_held();
  if (graph.refused) return false;
  if (graph.last.kernels.empty()) {
    graph.last = held_;
    return false;
  }
  const bool told = graph.ready ? update(graph) : make(graph);
  const cudaError_t result = told ? cudaGraphLaunch(graph.ready, stream_) : cudaErrorNotSupported;
  if (result == cudaSuccess) {
    std::swap(graph.last, held_);
    return true;
  }
  cudaGetLastError();  // what is wrong for good is so for each of the kernels
  destroy(graph);
  graph.refused = true;
  if (result != cudaErrorMemoryAllocation && result != cudaErrorNotSupported) check(result, "cudaGraphLaunch");
  return false;
}

}  // namespace hayloft::gpu::cuda
