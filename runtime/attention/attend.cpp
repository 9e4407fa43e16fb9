#include "runtime/attention/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "offload/error.h"
#include "runtime/cache/cache_size.h"

namespace hayloft::runtime {
namespace {

std::string shape(const TensorView& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

std::string name(const AttendTensors& tensors, const char* which) {
  return fmt::format("{}: {}", tensors.source, which);
}

void check_tensor(const AttendTensors& tensors, const TensorView& tensor, const char* which, const char* wanted) {
  if (tensor.dtype != "F64" && tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16") {
    fail("{} has dtype {}; it must be F64, F32, F16 or BF16", name(tensors, which), tensor.dtype);
  }
  if (tensor.shape.size() != 3 || std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0) {
    fail("{} has shape {}; it must be {}, none of them 0", name(tensors, which), shape(tensor), wanted);
  }
}

float largest_key(const AttendTensors& input, std::int64_t head) {
  const std::int64_t S = input.k.shape[1];
  const std::int64_t d = input.k.shape[2];
  float largest = 0;
  for (std::int64_t at = 0; at < S; ++at) {
    for (const float x : to_f32(input.k, (head * S + at) * d, d, name(input, "k"))) {
      largest = std::max(largest, std::abs(x));
    }
  }
  return largest;
}

// Scores are sums of f32: q that lets one of them leave its range gives no attention at all. |q . k| is at most the sum
// of |q| times the largest |k|; what methods compute besides takes less than four times that.
void require_finite_scores(const AttendTensors& input, const std::vector<float>& q) {
  constexpr double most = std::numeric_limits<float>::max() / 4.0;
  constexpr double largest_f16 = 65504;
  const std::int64_t heads = input.q.shape[1];
  const std::int64_t d = input.q.shape[2];
  const std::int64_t group = heads / input.k.shape[0];
  std::vector<float> key(static_cast<std::size_t>(input.k.shape[0]), -1);  // the largest; below 0: not looked for yet
  for (std::int64_t i = 0; i < input.q.shape[0] * heads; ++i) {
    const auto begin = q.begin() + i * d;
    double sum = 0;
    for (auto x = begin; x != begin + d; ++x) sum += std::abs(*x);
    if (sum * largest_f16 <= most) continue;
    float& largest_of_head = key[static_cast<std::size_t>(i % heads / group)];
    if (largest_of_head < 0) largest_of_head = largest_key(input, i % heads / group);
    if (sum * largest_of_head <= most) continue;
    const float largest =
        *std::max_element(begin, begin + d, [](float a, float b) { return std::abs(a) < std::abs(b); });
    fail("{} holds {:g} in query {}, head {}: its scores with k may overflow f32; scale q down", name(input, "q"),
         largest, i / heads, i % heads);
  }
}

// One head's rows of one block, rounded to f16: K into the first half of each row (offset 0), V into the second (d).
void fill_rows(const TensorView& tensor, const std::string& name, std::int64_t head, std::int64_t first, int tokens,
               f16* rows, int offset) {
  const std::int64_t S = tensor.shape[1];
  const auto d = static_cast<int>(tensor.shape[2]);
  const std::vector<float> values = to_f32(tensor, (head * S + first) * d, static_cast<std::int64_t>(tokens) * d, name);
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < d; ++c) {
      const float value = values[static_cast<std::size_t>(t) * d + c];
      const f16 rounded = to_f16(value);
      if (!std::isfinite(to_float(rounded))) {
        fail("{} holds {} at [{}, {}, {}]; the store keeps finite numbers of at most 65504", name, value, head,
             first + t, c);
      }
      rows[static_cast<std::int64_t>(t) * 2 * d + offset + c] = rounded;
    }
  }
}

void check_k(const MethodOptions& options, std::int64_t S) {
  const bool uses_k = options.name != "dense" && (options.name != "window" || !options.window);
  if (options.name != "dense" && options.k.by_layer().size() > 1) {
    fail("--attn-k {}: has a k for each of several layers, and these tensors are of one; give one k", options.k.text());
  }
  if (uses_k && options.k.at(0).count > S) {
    fail("--attn-k {}: only {} positions to choose from; lower it, or give a share such as 1%", options.k.text(), S);
  }
}

// A draw stands for the rest beside what is attended exactly, and there is no tail here.
void check_drawn(const MethodOptions& options, const SelectionPlan& plan) {
  if (plan.drawn == 0 || plan.k > 0 || plan.limit < plan.tokens) return;
  fail("--attn-rest draw: half of --attn-k {} leaves no position to attend to; raise it to 2, or give --attn-window 1",
       options.k.text());
}

// Everything that list `list` attended to, ascending.
std::vector<std::int32_t> attended_by(const StepTrace& trace, int list) {
  std::vector<std::int32_t> all;
  if (trace.lists > 0) {
    const auto begin = trace.positions.begin() + static_cast<std::ptrdiff_t>(list) * trace.k;
    all.assign(begin, begin + trace.k);
  }
  for (const auto& range : trace.ranges) {
    for (std::int64_t p = range.begin; p < range.end; ++p) all.push_back(static_cast<std::int32_t>(p));
  }
  std::sort(all.begin(), all.end());
  return all;
}

void add_positions(AttendOutput& output, const StepTrace& trace, const Method& method) {
  if (method.recall_k(output.tokens) == 0) return;  // attends to all there is: nothing was chosen
  output.lists = trace.lists > 0 ? trace.lists : output.kv_heads;
  for (int list = 0; list < output.lists; ++list) {
    std::vector<std::int32_t> attended = attended_by(trace, list);
    // The same at every query: how many are attended depends on S alone.
    output.width = std::max(method.options().k.at(0).of(output.tokens), static_cast<std::int64_t>(attended.size()));
    attended.resize(static_cast<std::size_t>(output.width), -1);
    output.positions.insert(output.positions.end(), attended.begin(), attended.end());
  }
}

}  // namespace

void check_tensors(const AttendTensors& tensors) {
  const auto& [source, q, k, v] = tensors;
  check_tensor(tensors, q, "q", "[N, Hq, d]");
  check_tensor(tensors, k, "k", "[Hkv, S, d]");
  check_tensor(tensors, v, "v", "[Hkv, S, d]");
  if (k.shape != v.shape) fail("{}: k is {} and v is {}; both must be [Hkv, S, d]", source, shape(k), shape(v));
  if (q.shape[2] != k.shape[2]) {
    fail("{}: q is {} and k is {}; their head dimensions differ", source, shape(q), shape(k));
  }
  if (q.shape[1] % k.shape[0] != 0) {
    fail("{}: {} query heads cannot share {} KV heads evenly", source, q.shape[1], k.shape[0]);
  }
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t n : {k.shape[0], k.shape[1], k.shape[2], q.shape[1]}) {
    if (n > most) fail("{}: q {}, k {}: a dimension is above {}", source, shape(q), shape(k), most);
  }
}

offload::Store make_store(const AttendTensors& input, offload::Arena& arena, const AttendStore& how,
                          const offload::Threads& threads) {
  const auto kv_heads = static_cast<int>(input.k.shape[0]);
  const std::int64_t S = input.k.shape[1];
  const auto d = static_cast<int>(input.k.shape[2]);
  offload::Store store(arena, {1, kv_heads, d, how.block_tokens, how.columns, how.rows});
  const offload::BlockLayout& layout = store.layout();
  for (std::int64_t first = 0; first < S; first += how.block_tokens) {
    const auto tokens = static_cast<int>(std::min<std::int64_t>(how.block_tokens, S - first));
    offload::BlockWriter block = store.start_block();
    threads.parallel_for(kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = begin; head < end; ++head) {
        std::byte* const base = block.data() + static_cast<std::uint64_t>(head) * layout.head_bytes;
        std::vector<f16> given(layout.row_format == offload::RowFormat::f16
                                   ? 0
                                   : static_cast<std::size_t>(tokens) * 2 * static_cast<std::size_t>(d));
        f16* const rows = given.empty() ? reinterpret_cast<f16*>(base) : given.data();
        fill_rows(input.k, name(input, "k"), head, first, tokens, rows, 0);
        fill_rows(input.v, name(input, "v"), head, first, tokens, rows, d);
        offload::fill_block(layout, block.data(), static_cast<int>(head), rows, 2 * d, tokens);
      }
    });
    store.commit(0, std::move(block), tokens);
  }
  return store;
}

std::vector<float> finite_queries(const AttendTensors& tensors) {
  std::vector<float> q = to_f32(tensors.q, name(tensors, "q"));
  const std::int64_t elements = tensors.q.shape[1] * tensors.q.shape[2];
  const auto bad = std::find_if_not(q.begin(), q.end(), [](float x) { return std::isfinite(x); });
  if (bad != q.end()) fail("{} holds {} in query {}", name(tensors, "q"), *bad, (bad - q.begin()) / elements);
  require_finite_scores(tensors, q);
  return q;
}

AttendOutput attend(const AttendTensors& input, const MethodOptions& options, gpu::Backend& backend,
                    offload::Arena& arena, const AttendStore& how, const AttendProgress& progress) {
  check_tensors(input);
  AttendOutput output;
  output.attn = options;
  output.queries = input.q.shape[0];
  output.query_heads = static_cast<int>(input.q.shape[1]);
  output.kv_heads = static_cast<int>(input.k.shape[0]);
  output.tokens = input.k.shape[1];
  output.head_dim = static_cast<int>(input.k.shape[2]);
  const SharedMethod method = make_method(options, output.head_dim);
  method->require_columns(how.columns);
  check_k(options, output.tokens);
  const std::int64_t query_elements = static_cast<std::int64_t>(output.query_heads) * output.head_dim;
  const std::vector<float> q = finite_queries(input);

  const offload::Store store = make_store(input, arena, how, backend.threads());
  gpu::CacheView cache;
  cache.kv_heads = output.kv_heads;
  cache.head_dim = output.head_dim;
  cache.store = store.layer(0);
  cache.tail.position = output.tokens;

  const auto [by, plan] = method->plan(cache, output.query_heads);
  check_drawn(by->options(), plan);
  const std::unique_ptr<MethodState> state =
      method->make_state({1, output.query_heads, output.kv_heads, output.head_dim}, backend);
  if (state) state->sync_with_cache({&cache, 1}, {});

  const gpu::Stream stream = backend.stream();
  MethodScratch scratch;
  const LayerStep at{backend, stream, 0, cache, store, output.query_heads, 1, scratch};
  output.by = by->options();
  output.window = by->window(output.tokens);
  const SharedAttender attender = local_attender();
  const std::uint64_t query_bytes = static_cast<std::uint64_t>(query_elements) * sizeof(float);
  const gpu::Buffer query = backend.allocate(query_bytes, stream);
  const gpu::Buffer mixed = backend.allocate(query_bytes, stream);
  StepTrace trace;
  output.y.resize(q.size());
  output.counters.resize(static_cast<std::size_t>(output.queries));
  if (progress) progress(0, output.queries);
  for (std::int64_t n = 0; n < output.queries; ++n) {
    backend.to_device(query.as<float>(), q.data() + n * query_elements, query_bytes, stream);
    const Step step{at, query.as<float>(), mixed.as<float>(), *attender, state.get(), &trace};
    output.counters[static_cast<std::size_t>(n)] = by->attend(step, plan);
    backend.to_host(output.y.data() + n * query_elements, mixed.as<float>(), query_bytes, stream);
    add_positions(output, trace, *by);
    output.alpha.insert(output.alpha.end(), trace.alpha.begin(), trace.alpha.end());
    if (progress) progress(n + 1, output.queries);
  }
  return output;
}

}  // namespace hayloft::runtime
