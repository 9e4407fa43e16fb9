#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/gated_delta.h"
#include "gpu/hot_reads.h"
#include "gpu/layer_steps.h"
#include "gpu/packed.h"
#include "gpu/products.h"
#include "gpu/rest_step.h"
#include "gpu/sparse_causal.h"
#include "gpu/step.h"
#include "index/scan/search.h"
#include "index/scan/sparq_query.h"
#include "offload/host/threads.h"
#include "offload/store/shard.h"
#include "offload/store/store.h"

// The interface between the runtime and whatever computes: coarse operations over device memory, in stream order.
// Unless said otherwise pointers are to device memory (on the CPU backend: ordinary memory), matrices are
// row-major, activations are f32, and nothing is synchronised except by synchronize() and the copies to the host.
//
// Threads: the operations of one Backend may be called from several threads at once, each with outputs, tails and a
// cache of its own; weights, blocks and whatever is only read may be shared. On one stream a thread's work keeps its
// order, and that of two threads comes in any. time_stages() and stage_times() see the work of all.
namespace hayloft::gpu {

// The factors of x and of x^3 in gelu_mul's sigmoid: 2 sqrt(2 / pi), and 0.044715 times that.
inline constexpr float gelu_linear = 1.59576912f;   // of x
inline constexpr float gelu_cubic = 0.0713548163f;  // of x^3

// The factor of g in clamped_mul's sigmoid.
inline constexpr float clamped_slope = 1.702f;

// Types of the elements of weight matrices; `packed` ones are quantised, in the layout of gpu/packed.h.
enum class DType : std::uint8_t { f32, f16, bf16, packed };
// Returns the bytes of one element, which packed ones have no whole number of.
inline int bytes_of(DType type) {
  return type == DType::f32 ? 4 : 2;
}

// A weight matrix [rows][cols], row-major unless packed; y = x W^T maps cols inputs to rows outputs.
struct Matrix {
  const void* data = nullptr;
  DType type = DType::f32;
  int rows = 0;
  int cols = 0;
  Packing packing = {};  // of a packed one
  bool on_host = false;  // whether `data` is host memory, which embed() alone reads
};
// Returns the bytes of all its elements, as they lie in device memory.
inline std::uint64_t bytes_of(const Matrix& matrix) {
  if (matrix.type == DType::packed) return matrix.packing.matrix_bytes(matrix.rows, matrix.cols);
  return static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols) *
         static_cast<std::uint64_t>(bytes_of(matrix.type));
}

// One of several products: y [T][w->rows] = x [T][w->cols] W^T + bias [w->rows] (bias may be null).
struct MatrixProduct {
  const float* x = nullptr;
  int T = 0;
  const Matrix* w = nullptr;
  float* y = nullptr;
  const float* bias = nullptr;
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

// Says which rows of tails in different memory are the same, to the bit: those before position `end` that a cache has
// and all that were forked from it have.
struct TailOrigin {
  std::uint64_t cache = 0;  // its number
  std::int64_t end = 0;
};

// All of one layer's cache. Global layers: the store holds [0, store.tokens) and the tail follows on. Sliding-window
// layers: the store is empty and the tail is all there is. Where ranks hold a context together, the store of a global
// layer has the shard's own blocks alone, in which positions are own ones; all others are whole.
struct CacheView {
  int layer = 0;   // which of the model's global layers, from 0
  int layers = 1;  // how many those are
  int kv_heads = 0;
  int head_dim = 0;
  offload::LayerView store;
  TailView tail;
  offload::Shard shard = {};
  std::span<const float> value_sum = {};     // f32 [Hkv][d], of V in the stores of all ranks; empty of a cache alone
  std::span<const TailOrigin> origins = {};  // of the tail, the oldest first; the cache's own; may be empty
  // f32 [Hq] in device memory: the logit that the softmax of each query head has beside those of the keys, and that no
  // value follows (gpt-oss, arXiv 2508.10925). It counts as attended, in alpha and in a SoftmaxPart too, so that of the
  // parts that are merged one may have it. Null: there is none.
  const float* sinks = nullptr;

  std::int64_t tokens() const { return tail.position + tail.tokens; }  // absolute length of the sequence so far
  // Returns a global layer's positions in the stores of all ranks.
  std::int64_t stored_tokens() const { return shard.alone() ? store.tokens : tail.position; }
};

// The place where attention to a part of the positions leaves its softmax, so that it can be merged with other parts
// (gpu/attention_state.h): the output is then AttentionState::weighted instead of weighted / sum.
struct SoftmaxPart {
  float* max = nullptr;  // f32 [.][Hq]
  float* sum = nullptr;  // likewise
};

// The softmax of a search over a part of the positions, so that what the search found can be ranked among what searches
// of other parts have found. In device memory.
struct SparqPart {
  float* logits = nullptr;    // out: f32 [Hq][k], of each query head for the positions of its KV head's list
  SoftmaxPart all = {};       // out: [Hq], over store and tail
  SoftmaxPart attended = {};  // out: likewise, over the positions at and after the limit, and the tail
  // In: likewise, by which the softmax rule ranks in place of `all`; null: by `all`.
  SoftmaxPart ranked_by = {};
  // Called on the host when all of this and the positions are queued, ranked by `all`. Where it returns true it has
  // filled ranked_by, and positions and logits are found anew: columns are read again only where the scores of all KV
  // heads are not kept at once. May be null.
  const std::function<bool()>* again = nullptr;

  bool wanted() const { return logits != nullptr; }
};

// Step 1 of SparQ and its selection (arXiv 2312.04985, section 4 and appendix B), over store and tail. Its approximate
// scores come from r whole components of K; or from so many bit planes as index::plane_components() spreads over them,
// from the tail's part of a component all bits. Planes, and ComponentOrder::qk, need a store whose columns are planes.
// Its lists are those of KV heads, whatever RankingOptions::per says.
struct SparqSelect : index::RankingOptions {
  int k = 0;               // positions to take from the store's [0, limit)
  std::int64_t limit = 0;  // positions at and after limit are attended anyway
  // u64 [2] in device memory, to which the bytes are added that a device with a cache of columns reads there instead of
  // in host memory: of columns, and of their scales or ranges. May be null.
  unsigned long long* held_bytes = nullptr;
  SparqPart part = {};                // for backends that search in parts, over a store that holds something
  index::KeptScores* kept = nullptr;  // taken by backends that score in host memory, left empty by others; may be null
  // Out, for backends that estimate the rest: f32 [Hq][scores_stride(store.tokens)], the scores of the store's
  // positions.
  float* scores = nullptr;
  // u64 [2] in device memory, to which bytes of columns and scales are added that fetch_ahead() has brought for this
  // step: those that it reads there in place of host memory, and all. May be null.
  unsigned long long* ahead_bytes = nullptr;
};

// The positions that one decode query attends to: lists of positions in the store, and ranges of absolute positions
// that may lie in the store, in the tail or across both. Ranges are disjoint from each other and from the lists; an
// empty one is ignored. A range that ends at CacheView::tokens() takes in the whole tail.
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
  // u64 in device memory, to which the bytes of the lists' rows are added that a device with a cache of rows reads
  // there instead of in host memory. May be null.
  unsigned long long* held_bytes = nullptr;
  const float* alpha = nullptr;  // [Hq]: y = alpha * y + (1 - alpha) * mean of V over every token; null: y as it is
  // For backends that attend in parts, and without alpha. Both may be null.
  const std::int32_t* sizes = nullptr;  // [lists]: so many of a list's k are attended, its first ones; null: all k
  SoftmaxPart partial = {};             // [Hq]
};

// The part of attend_together() for one of its sequences.
struct AttendStep {
  CacheView cache;
  const float* q = nullptr;  // f32 [Hq][d], already in the cache
  Attended what;
  float* out = nullptr;  // f32 [Hq][d]
};

// The positions up to its own that a prefill query keeps: the last `window`, its own included, and the first `sinks` of
// the sequence as far as the cache still holds them; window 0 keeps them all. With sinks this is StreamingLLM (arXiv
// 2309.17453) and LM-Infinite (arXiv 2308.16137) without their shift of positions: keys are rotated at their absolute
// positions when they enter the cache and stay so, hence distances reach the length of the sequence.
struct CausalWindow {
  std::int64_t window = 0;
  std::int64_t sinks = 0;

  CausalWindow(std::int64_t last = 0, std::int64_t first = 0) : window(last), sinks(first) {}
};

// The time that one part of the operations took on the device, all calls together.
struct StageTime {
  std::string name;
  double seconds = 0;
  int times = 0;
};

// Device memory of a backend that has a budget for it; all zero where it is ordinary memory.
struct DeviceMemory {
  std::uint64_t budget_bytes = 0;
  std::uint64_t used_bytes = 0;         // without what is only kept as long as nobody needs the room
  std::uint64_t peak_bytes = 0;         // the most that used_bytes has been
  std::uint64_t driver_peak_bytes = 0;  // the most that the driver has held for it, pieces too small to use included
  std::uint64_t overhead_bytes = 0;  // beside the budget: what the driver takes before anything is allocated, at most
};

// The shape that the scratch of operations depends on.
struct ScratchShape {
  int tokens = 0;  // T of the longest chunk
  int query_heads = 0;
  int head_dim = 0;
  int widest = 0;  // the most inputs of any matrix
};

// Computes everything that a model's step takes. The operations queue work on a stream and return, unless they say
// otherwise.
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
  // Returns the most that operations of that shape take of the budget while they run, besides what they are given and
  // what is set aside for them, which memory() counts as used.
  virtual std::uint64_t scratch_bytes(const ScratchShape&) const { return 0; }
  // Returns whether select_sparq() may find columns on the device, and attend() rows of lists, and then count their
  // held_bytes.
  virtual bool keeps_reads() const { return false; }
  // Returns what is kept of a layer's columns and rows, for warm() in another run; waits for the device. Empty where
  // nothing is.
  virtual HotReads hot_reads(const CacheView&, Stream) { return {}; }
  // Reads such columns and rows now, as far as there is room to keep them. What does not fit the layer is ignored: it
  // is a hint, and nothing but time depends on it. Throws Error where memory for the reading itself cannot be had.
  virtual void warm(const CacheView&, const HotReads&, Stream) {}

  // For benchmarks: measures the parts of the operations from now on, or stops; stage_times() then says how long each
  // took, and waits for them.
  virtual void time_stages(bool) {}
  virtual std::vector<StageTime> stage_times() { return {}; }

  // Streams. What computes goes to stream(); what comes from the host by load_stream() and what leaves for it, full
  // blocks above all, by spill_stream(), so that computing goes on meanwhile.
  // order(): what is queued on `after` from now on waits for what was queued on `before` until now; the host does not.
  virtual Stream stream() = 0;
  virtual Stream load_stream() { return stream(); }
  virtual Stream spill_stream() { return stream(); }
  virtual void order(Stream /* before */, Stream /* after */) {}
  // Begins a step of so many tokens for the calling thread. Returns null where that makes no difference.
  virtual std::unique_ptr<Step> begin_step(int /*tokens*/) { return nullptr; }

  // Memory. allocate throws Error when the device budget is exhausted; contents are undefined.
  virtual Buffer allocate(std::uint64_t bytes, Stream stream) = 0;
  // For what stays as long as a model does: kept apart from what comes and goes.
  virtual Buffer allocate_weights(std::uint64_t bytes, Stream stream) { return allocate(bytes, stream); }
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
  // For a loader: converts the n elements of a matrix in place to the type that is returned. A device that multiplies
  // another type of the same width faster may choose that one, when next to nothing is lost. Done on return.
  virtual DType convert_weights(void* /* w */, DType type, std::int64_t /* n */, Stream) { return type; }
  // Returns how many tokens matmul() takes at most so that each gets the bits that it gets alone.
  virtual int tokens_multiplied_as_alone() const { return 1; }
  // Returns how many tokens of one sequence go through a model at once at most so that each gets the bits that it gets
  // alone, where matrices have up to `widest` inputs: matmul() of them, and attend_together() of as many steps, which
  // then reads once what they share. 1 where that saves nothing.
  virtual int tokens_verified_at_once(int /*widest*/) const { return 1; }
  // Returns whether embed and matmul take packed matrices.
  virtual bool multiplies_packed() const { return false; }
  // Returns how matmul() multiplies packed matrices.
  virtual Products products() const { return Products::exact; }
  // y [T][w.rows] = x [T][w.cols] W^T + bias [w.rows] (bias may be null)
  virtual void matmul(const float* x, int T, const Matrix& w, const float* bias, float* y, Stream stream) = 0;
  // Products whose outputs do not overlap, each as matmul() gives it, to the bit.
  virtual void multiply_each(std::span<const MatrixProduct> products, Stream stream);
  // y [rows.size()][cols]: row rows[i] of x becomes row i.
  virtual void gather_rows(const float* x, std::span<const std::int32_t> rows /* host */, int cols, float* y,
                           Stream stream);
  // Row t of y [T][cols] becomes the sum of weights[i] times row i of x over all i with rows[i] = t, each product and
  // each sum rounded, in the order of i; every t is there. x is changed.
  virtual void sum_rows(float* x, std::span<const std::int32_t> rows /* host */,
                        std::span<const float> weights /* host */, int T, int cols, float* y, Stream stream);
  // y = x / sqrt(mean(x^2) + eps) * weight, over each of `rows` rows of n; x and y may be the same. weight f32 [n].
  virtual void rms_norm(const float* x, int rows, int n, const float* weight, float eps, float* y, Stream stream) = 0;
  virtual void add_and_norm(const AddAndNorm& what, Stream stream);  // gpu/layer_steps.h says what it computes
  virtual void add(float* y, const float* x, std::int64_t n, Stream stream) = 0;             // y += x
  virtual void scale(float* x, std::int64_t n, float factor, Stream stream) = 0;             // x *= factor
  virtual void silu_mul(float* gate, const float* up, std::int64_t n, Stream stream) = 0;    // gate = silu(gate) * up
  virtual void sigmoid_mul(float* x, const float* gate, std::int64_t n, Stream stream) = 0;  // x = sigmoid(gate) * x
  // gate = gelu(gate) * up, with the tanh in place of the error function: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715
  // x^3))).
  virtual void gelu_mul(float* gate, const float* up, std::int64_t n, Stream stream) = 0;
  // gate = (u + 1) g sigmoid(clamped_slope g) of g = min(gate, limit), u = up held to [-limit, limit] (gpt-oss).
  virtual void clamped_mul(float* gate, const float* up, std::int64_t n, float limit, Stream stream) = 0;
  // x = cap tanh(x / cap); what is not finite stays as it is.
  virtual void soft_cap(float* x, std::int64_t n, float cap, Stream stream) = 0;
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
  virtual void enter(const CacheView& cache, const NewHeads& heads, Stream stream);  // gpu/layer_steps.h
  // Transposes the tail's oldest `tokens` rows into one host block, laid out by `layout`. Done when the stream has
  // reached it.
  virtual void spill(const CacheView& cache, int tokens, const offload::BlockLayout& layout, std::byte* block,
                     Stream stream) = 0;

  // T tokens through a layer of gated delta rules, one after the other: what they give, f32 [T][values], and the state
  // behind them do not depend on how they are cut into chunks, to the bit. inputs f32 [T][channels], which are changed;
  // a, b f32 [T][Hv]; gate f32 [T][values]. Throws Error where require_delta_shape() does.
  virtual void gated_delta(const DeltaLayer& layer, const DeltaState& state, float* inputs, const float* a,
                           const float* b, const float* gate, int T, float* out, Stream stream) = 0;

  // Attention, scale 1/sqrt(d). Outputs are f32 [.][Hq][d].
  // Prefill: T queries, the last of which sits at the cache's last position; each attends to the positions up to its
  // own that `window` keeps. Reads T * (window + sinks) rows at most.
  virtual void attend_causal(const CacheView& cache, const float* q, int T, int query_heads, const CausalWindow& window,
                             float* out, Stream stream) = 0;
  // Decode, one token: q f32 [Hq][d], already in the cache.
  virtual void attend(const CacheView& cache, const float* q, int query_heads, const Attended& what, float* out,
                      Stream stream) = 0;
  // attend() for one token each of several sequences, in the same layer of one model, each to the bit as alone. Rows of
  // ranges that lie in blocks which sequences share may be read once for all of them.
  virtual void attend_together(std::span<const AttendStep> steps, int query_heads, Stream stream) {
    for (const AttendStep& step : steps) attend(step.cache, step.q, query_heads, step.what, step.out, stream);
  }
  // Returns whether attend() looks at Attended::sizes and partial, and attend_causal_part() is there.
  virtual bool attends_in_parts() const { return false; }
  // attend_causal() to the positions of `part` alone, whose `first` is that of the first query, and which may end
  // before it: then all queries see all of it. For the merge with other parts, `partial` f32 [T][Hq].
  virtual void attend_causal_part(const CacheView& part, const float* q, int T, int query_heads, std::int64_t first,
                                  const SoftmaxPart& partial, float* out, Stream stream);
  // attend_causal() without a window, in which blocks of queries read chosen blocks of keys; adds to `read` what that
  // was. A chunk's result depends on how a prompt is cut.
  virtual void attend_causal_sparse(const CacheView& cache, const float* q, int T, int query_heads,
                                    const SparseCausal& how, float* out, SparseRead& read, Stream stream) = 0;
  // Returns whether select_sparq() looks at SparqSelect::part, with which it gives no alpha.
  virtual bool searches_in_parts() const { return false; }
  // positions i32 [Hkv][k], ascending; alpha f32 [Hq], the softmax mass of everything attended (selected, at or after
  // limit, tail), in the approximate scores. Throws Error where the columns are not what `args` needs.
  virtual void select_sparq(const CacheView& cache, const float* q, int query_heads, const SparqSelect& args,
                            std::int32_t* positions, float* alpha, Stream stream) = 0;
  // A hint: this layer's select_sparq() comes soon, and what it read the last time is likely to be read again. It may
  // be brought to the device meanwhile, beside what is queued later; results are the same, to the bit. Memory of
  // blocks may be used again meanwhile, and is given back to the system behind what the device still does. Throws
  // nothing but what the device throws.
  virtual void fetch_ahead(const CacheView& /*next*/, Stream /*stream*/) {}
  // Returns whether select_sparq() keeps scores and attend_with_rest() is there.
  virtual bool estimates_rest() const { return false; }
  // Decode, one token: attention with a rest that is estimated by scores. q and out f32 [Hq][d].
  virtual void attend_with_rest(const CacheView& cache, const float* q, int query_heads, const RestStep& rest,
                                float* out, Stream stream);

 protected:
  friend class Buffer;
  virtual void release(void* data, std::uint64_t bytes, Stream stream) noexcept = 0;
};

}  // namespace hayloft::gpu
