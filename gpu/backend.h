#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "index/scan/search.h"
#include "offload/host/threads.h"
#include "offload/store/store.h"

// The seam between the runtime and whatever computes. Coarse verbs over device memory, in stream order; no CUDA in
// sight. Unless said otherwise pointers are to device memory (on the CPU backend: ordinary memory), matrices are
// row-major, activations are f32, and nothing is synchronised except by synchronize() and the copies to the host.
//
// Threads: the verbs of one Backend may be called from several threads at once, each with outputs, tails and a cache
// of its own; weights, blocks and whatever is only read may be shared. On one stream a thread's work keeps its order,
// and that of two threads comes in any. time_stages() and stage_times() see the work of all.
namespace hayloft::gpu {

// Types of the elements of weight matrices.
enum class DType : std::uint8_t { f32, f16, bf16 };
// Of one element.
inline int bytes_of(DType type) {
  return type == DType::f32 ? 4 : 2;
}

// An order of execution. Default-constructed: the backend's own order; the CPU backend runs everything at once, in
// program order.
struct Stream {
  void* handle = nullptr;
};

class Backend;

// Owns device memory; frees it on the stream it was allocated on. Movable, empty when default-constructed or moved
// from.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, void* data, std::uint64_t bytes, Stream stream);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  Stream stream_;
};

// A weight matrix [rows][cols], row-major; y = x W^T maps cols inputs to rows outputs.
struct Matrix {
  const void* data = nullptr;
  DType type = DType::f32;
  int rows = 0;
  int cols = 0;
};

// Rotary position embedding, half-split layout: component i pairs with i + d/2. angle = position *
// inverse_frequency[i].
struct Rope {
  const float* inverse_frequency = nullptr;  // f32 [d / 2]
};

// The newest tokens of one layer, dense on the device: f16 rows [Hkv][capacity][2 d], K then V, exactly the store's row
// format. Slots [first, first + tokens) are live; slot `first` holds absolute position `position`.
struct TailView {
  f16* rows = nullptr;
  std::int64_t capacity = 0;  // slots per head
  std::int64_t first = 0;
  std::int64_t tokens = 0;
  std::int64_t position = 0;
};

// All of one layer's cache. Global layers: the store holds [0, store.tokens) and the tail follows on. Sliding-window
// layers: the store is empty and the tail is all there is.
struct CacheView {
  int layer = 0;  // which of the model's global layers, from 0
  int kv_heads = 0;
  int head_dim = 0;
  offload::LayerView store;
  TailView tail;

  std::int64_t tokens() const { return tail.position + tail.tokens; }  // absolute length of the sequence so far
};

// What the approximate logits of SparQ are divided by (its figure 7b): tau = sqrt(d * |q[i1]|_1 / |q|_1), the share of
// q that the chosen components cover; sqrt(d), as if they were all; sqrt(r), as if they were any.
enum class Temperature : std::uint8_t { coverage, head_dim, rank };

// Step 1 of SparQ and its selection (arXiv 2312.04985, section 4 and appendix B), over store and tail.
struct SparqSelect {
  int rank = 0;            // r
  int k = 0;               // positions to take from the store's [0, limit)
  std::int64_t limit = 0;  // positions at and after limit are attended anyway
  index::GroupRule rule = index::GroupRule::softmax;
  Temperature temperature = Temperature::coverage;
};

// Exact inner-product top-k over the store's [0, limit), searched near the memory.
struct ExactSelect {
  int k = 0;
  std::int64_t limit = 0;
  index::GroupRule rule = index::GroupRule::softmax;
  index::SelectPer per = index::SelectPer::query_head;
  bool faiss = false;  // Faiss' flat index instead of the own kernel; per query head only
};

// What one decode query attends to: lists of positions in the store, and ranges of absolute positions that may lie in
// the store, in the tail or across both. Ranges are disjoint from each other and from the lists; an empty one is
// ignored. A range that ends at CacheView::tokens() takes in the whole tail.
struct Attended {
  const std::int32_t* positions = nullptr;  // [lists][k], ascending
  int lists = 0;                            // 0, Hkv or Hq
  int k = 0;
  // Positions [begin, end).
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  Range ranges[2];
  const float* alpha = nullptr;  // [Hq]: y = alpha * y + (1 - alpha) * mean of V over every token; null: y as it is
};

// Which of the positions up to its own a prefill query keeps: the last `window`, its own included, and the first
// `sinks` of the sequence as far as the cache still holds them; window 0 keeps them all. With sinks this is
// StreamingLLM (arXiv 2309.17453) and LM-Infinite (arXiv 2308.16137) without their shift of positions: keys are rotated
// at their absolute positions when they enter the cache and stay so, hence distances reach the length of the sequence.
struct CausalWindow {
  std::int64_t window = 0;
  std::int64_t sinks = 0;

  CausalWindow(std::int64_t last = 0, std::int64_t first = 0) : window(last), sinks(first) {}
};

// How long one part of the verbs took on the device, all calls together.
struct StageTime {
  std::string name;
  double seconds = 0;
  int times = 0;
};

// Device memory of a backend that has a budget for it; all zero where it is ordinary memory.
struct DeviceMemory {
  std::uint64_t budget_bytes = 0;
  std::uint64_t used_bytes = 0;
  std::uint64_t peak_bytes = 0;         // the most that used_bytes has been
  std::uint64_t driver_peak_bytes = 0;  // the most that the driver has held for it, pieces too small to use included
};

// What computes. The operations queue work on a stream and return, unless they say otherwise.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;         // "cpu", "cuda"
  virtual std::string description() const = 0;  // the device in words, one line
  virtual const offload::Threads& threads() const = 0;

  // Arenas whose memory the device is to read in place are made with this listener, which pins what they commit; null
  // where that makes no sense.
  virtual std::shared_ptr<offload::ChunkListener> pinning() { return nullptr; }
  virtual DeviceMemory memory() const { return {}; }

  // For benchmarks: measures the parts of the verbs from now on, or stops; stage_times() then says how long each took,
  // and waits for them. Backends that run a verb in one piece have none.
  virtual void time_stages(bool) {}
  virtual std::vector<StageTime> stage_times() { return {}; }

  // Streams. What computes goes to stream(); what comes from the host by load_stream() and what leaves for it, full
  // blocks above all, by spill_stream(), so that computing goes on meanwhile.
  // order(): what is queued on `after` from now on waits for what was queued on `before` until now; the host does not.
  virtual Stream stream() = 0;
  virtual Stream load_stream() { return stream(); }
  virtual Stream spill_stream() { return stream(); }
  virtual void order(Stream /* before */, Stream /* after */) {}

  // Memory. allocate throws Error when the device budget is exhausted; contents are undefined.
  virtual Buffer allocate(std::uint64_t bytes, Stream stream) = 0;
  virtual void to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) = 0;
  virtual void to_host(void* host, const void* device, std::uint64_t bytes, Stream stream) = 0;  // done on return
  virtual void copy(void* to, const void* from, std::uint64_t bytes,
                    Stream stream) = 0;  // device to device, may overlap
  // Host memory for the queued copies below, pinned where that is wanted and possible: the caller waits for copies to
  // and from other memory. Contents are undefined. It must not outlive the backend. Throws Error when there is none
  // left.
  virtual std::shared_ptr<std::byte> host_memory(std::uint64_t bytes);
  // As the copies above, but the host memory is in use until the stream has come past.
  virtual void queue_to_device(void* device, const void* host, std::uint64_t bytes, Stream stream) {
    to_device(device, host, bytes, stream);
  }
  virtual void queue_to_host(void* host, const void* device, std::uint64_t bytes, Stream stream) {
    to_host(host, device, bytes, stream);
  }
  virtual void synchronize(Stream stream) = 0;

  // Dense algebra, T tokens at a time.
  virtual void embed(const Matrix& table, const std::int32_t* tokens /* [T] host */, int T, float* out /* [T][cols] */,
                     Stream stream) = 0;
  // For a loader: the n elements of a matrix, and the type that they have from now on. A device that multiplies another
  // type of the same width faster may have rewritten them in that one, when next to nothing is lost. Done on return.
  virtual DType settle_weights(void* /* w */, DType type, std::int64_t /* n */, Stream) { return type; }
  // y [T][w.rows] = x [T][w.cols] W^T + bias [w.rows] (bias may be null)
  virtual void matmul(const float* x, int T, const Matrix& w, const float* bias, float* y, Stream stream) = 0;
  // y = x / sqrt(mean(x^2) + eps) * weight, over each of `rows` rows of n; x and y may be the same. weight f32 [n].
  virtual void rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, Stream stream) = 0;
  virtual void add(float* y, const float* x, std::int64_t n, Stream stream) = 0;           // y += x
  virtual void silu_mul(float* gate, const float* up, std::int64_t n, Stream stream) = 0;  // gate = silu(gate) * up
  // *flag = min(*flag, tag) if any of x [n] is NaN or infinite.
  virtual void flag_nonfinite(const float* x, std::int64_t n, std::int32_t tag, std::int32_t* flag, Stream stream) = 0;
  // In place on x [T][heads][d]; token t is at absolute position `position + t`.
  virtual void rope(float* x, int T, int heads, int d, std::int64_t position, const Rope& rope, Stream stream) = 0;

  // The k largest of x [n] (1 <= k <= n), ids ascending, ties to the smaller id; values[i] = x[ids[i]]. Into host
  // memory, done on return: the others do not leave the device. NaN is less than everything.
  virtual void top_values(const float* x, std::int64_t n, int k, std::int32_t* ids /* [k] host */,
                          float* values /* [k] host */, Stream stream) = 0;

  // The cache. k and v are f32 [T][Hkv][d]; they are rounded to f16 and written behind the tail's live slots. The
  // caller sees to it that capacity suffices and adds T to the view's tokens afterwards.
  virtual void append(const CacheView& cache, const float* k, const float* v, int T, Stream stream) = 0;
  // Transposes the tail's oldest `tokens` rows into one host block, laid out by `layout`. Done when the stream has
  // reached it.
  virtual void spill(const CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
                     Stream stream) = 0;

  // Attention, scale 1/sqrt(d). Outputs are f32 [.][Hq][d].
  // Prefill: T queries, the last of which sits at the cache's last position; each attends to the positions up to its
  // own that `window` keeps. Reads T * (window + sinks) rows at most.
  virtual void attend_causal(const CacheView& cache, const float* q, int T, int query_heads, const CausalWindow& window,
                             float* out, Stream stream) = 0;
  // Decode, one token: q f32 [Hq][d], already in the cache.
  virtual void attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
                      Stream stream) = 0;
  // positions i32 [Hkv][k], ascending; alpha f32 [Hq], the softmax mass of everything attended (selected, at or after
  // limit, tail), in the approximate scores.
  virtual void select_sparq(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                            std::int32_t* positions, float* alpha, Stream stream) = 0;
  // positions i32 [Hkv or Hq][k], ascending.
  virtual void select_exact(const CacheView& cache, const float* q, int query_heads, const ExactSelect& args,
                            std::int32_t* positions, Stream stream) = 0;

 protected:
  friend class Buffer;
  virtual void release(void* data, std::uint64_t bytes, Stream stream) noexcept = 0;
};

// The reference and the default. Its device memory is ordinary memory, without a budget of its own.
std::unique_ptr<Backend> make_cpu_backend(const offload::Threads& threads);

// How columns of K come over the link: read in place by the multiprocessors, by the copy engine, or by both at once.
enum class Link : std::uint8_t { automatic, sm, copy, both };

// One way for the columns of each format: the fewer bytes a column has, the more the number of copies counts.
struct LinkChoice {
  Link f16;
  Link int8;
  Link int4;

  LinkChoice(Link every = Link::automatic)
      : f16(every), int8(every), int4(every) {}  // NOLINT(google-explicit-constructor)
  Link& of(offload::ColumnFormat format) {
    return format == offload::ColumnFormat::f16 ? f16 : format == offload::ColumnFormat::int8 ? int8 : int4;
  }
  Link of(offload::ColumnFormat format) const { return LinkChoice(*this).of(format); }
  friend bool operator==(const LinkChoice&, const LinkChoice&) = default;
};

// Where K and V lie on the host: pinned, so that the device reads them in place; in pageable memory, passing through a
// small pinned ring (`staged`); or mapped from the file they were saved to, passing through the ring as well (`mmap`).
// `automatic` pins what can be pinned and stages otherwise.
enum class KvHost : std::uint8_t { automatic, pinned, staged, mmap };

// What the fastest link of today carries while the next copy is issued, 2.3 us: shorter ones leave it idle.
inline constexpr std::uint64_t worthwhile_copy_bytes = 128 << 10;

struct CudaOptions {
  // Budget of device memory, --gpu-memory: everything that this process takes of it, what CUDA itself needs included.
  // 0: what is free, less a reserve.
  std::uint64_t memory_bytes = 0;
  LinkChoice link = {};  // automatic: sm
  // With Link::copy and Link::both: columns that lie in so many pieces that a copy would bring in fewer bytes than this
  // are read in place instead. 0: copied at whatever cost.
  std::uint64_t least_copy_bytes = 0;
  KvHost kv_host = KvHost::automatic;
  // Told, once, what the user should know and did not ask for: memory that could not be pinned. Null: nobody wants to.
  std::function<void(const std::string&)> say = nullptr;
};

// Throws Error saying why when there is no CUDA device that can be used as asked; NoDevice (gpu/no_device.h) when this
// build or this machine has none at all. threads must outlive the backend and the arenas that pin through it.
std::unique_ptr<Backend> make_cuda_backend(const offload::Threads& threads, const CudaOptions& options = {});

}  // namespace hayloft::gpu
