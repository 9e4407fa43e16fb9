#include <algorithm>
#include <map>
#include <mutex>

#include "python/src/bindings.h"
#include "python/src/model.h"
#include "runtime/cache/layer_rows.h"
#include "runtime/context/foreign_cache.h"
#include "runtime/context/foreign_context.h"
#include "runtime/context/ingest.h"

// The cache behind the models of others, and contexts whose K and V they computed.
namespace hayloft::python {
namespace {

// The window of each layer of the model, 0 where it is global; other layers never reach the store, whatever their
// number says.
using Windows = std::vector<std::int64_t>;

runtime::ModelConfig shape_of(int query_heads, int kv_heads, int head_dim, const Windows& windows) {
  if (query_heads < 1 || kv_heads < 1 || query_heads % kv_heads != 0) {
    fail("{} query heads cannot share {} KV heads evenly", query_heads, kv_heads);
  }
  if (std::count(windows.begin(), windows.end(), 0) == 0) fail("none of the model's layers attends to everything");
  runtime::ModelConfig config;
  config.layers = static_cast<int>(windows.size());
  config.query_heads = query_heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.sliding_window = windows;
  return config;
}

runtime::CacheOptions cache_options(int block_tokens, const std::string& columns, const std::string& rows,
                                    std::int64_t window) {
  runtime::CacheOptions options;
  options.block_tokens = block_tokens;
  options.columns = column_format(columns);
  options.rows = row_format(rows);
  options.window = window;
  return options;
}

class OpenCache {
 public:
  OpenCache(std::shared_ptr<Machine> machine, const runtime::ModelConfig& config, const runtime::CacheOptions& options,
            const std::string& attn)
      : machine_(std::move(machine)),
        arena_(machine_->make_arena()),
        cache_(*machine_->backend, *arena_, config, options) {
    set_method(attn);
  }

  OpenCache(std::shared_ptr<Machine> machine, const offload::Snapshot& snapshot, const runtime::ModelConfig& config,
            const runtime::CacheOptions& options, const std::string& attn)
      : machine_(std::move(machine)),
        arena_(machine_->make_arena()),
        cache_(*machine_->backend, *arena_, config, options, snapshot),
        tokens_(snapshot.tokens()),
        reading_(runtime::carried_note(snapshot)) {
    set_method(attn);
  }

  static std::unique_ptr<OpenCache> open(std::shared_ptr<Machine> machine, const std::string& path, int query_heads,
                                         const Windows& windows, const std::string& attn) {
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    const offload::StoreShape& shape = snapshot.description().shape;
    return std::make_unique<OpenCache>(std::move(machine), snapshot,
                                       shape_of(query_heads, shape.kv_heads, shape.head_dim, windows),
                                       cache_options(shape.block_tokens, offload::name(shape.columns),
                                                     offload::name(shape.rows), runtime::CacheOptions().window),
                                       attn);
  }

  void set_method(const std::string& attn) {
    const Use use(*this);
    cache_.set_method(runtime::make_method(runtime::parse_method(attn, {}), cache_.config().head_dim));
  }

  py::object attend(int layer, const py::buffer& q, const py::buffer& k, const py::buffer& v) {
    const ArrayView queries(q, "F32", "q");
    const ArrayView keys(k, "F32", "k");
    const ArrayView values(v, "F32", "v");
    const std::vector<std::int64_t>& shape = queries.tensor().shape;
    const runtime::ModelConfig& config = cache_.config();
    const std::vector<std::int64_t> wanted{shape.empty() ? 0 : shape[0], config.kv_heads, config.head_dim};
    check_layer(layer);
    if (shape.size() != 3 || shape[0] < 1 || shape[1] != config.query_heads || shape[2] != config.head_dim ||
        keys.tensor().shape != wanted || values.tensor().shape != wanted) {
      fail("layer {}: q [{}], k [{}] and v [{}] must be [T, {}, {}] and [T, {}, {}] twice", layer,
           fmt::join(shape, ", "), fmt::join(keys.tensor().shape, ", "), fmt::join(values.tensor().shape, ", "),
           config.query_heads, config.head_dim, config.kv_heads, config.head_dim);
    }
    std::vector<float> out(queries.values<float>().size());
    {
      const py::gil_scoped_release unlocked;
      const Use use(*this);
      cache_.attend(layer, queries.values<float>().data(), keys.values<float>().data(), values.values<float>().data(),
                    static_cast<int>(shape[0]), out.data());
    }
    return make_array(out, shape);
  }

  std::int64_t length(int layer) const {
    check_layer(layer);
    return cache_.tokens(layer);
  }

  // K and V of a layer, f16 [Hkv][S][d], of a sliding-window layer those that a snapshot brought; and the position of
  // the first.
  py::tuple kv(int layer) {
    check_layer(layer, false);
    const runtime::ModelConfig& config = cache_.config();
    const auto heads = static_cast<std::size_t>(config.kv_heads);
    const auto d = static_cast<std::size_t>(config.head_dim);
    std::vector<f16> k, v;
    std::int64_t position = 0;
    std::int64_t held = 0;
    {
      const py::gil_scoped_release unlocked;
      const Use use(*this);
      const runtime::Cache& settled = cache_.settled();
      const offload::SnapshotTail tail = settled.tails()[static_cast<std::size_t>(layer)];
      const offload::BlockLayout& layout = settled.store().layout();
      const runtime::LayerRows rows{
          tail.store_layer >= 0 ? settled.store().layer(tail.store_layer) : offload::LayerView{&layout, {}, 0, {}},
          tail.image()};
      position = tail.store_layer >= 0 ? 0 : tail.position;
      held = rows.tokens() - position;
      k.reserve(heads * static_cast<std::size_t>(held) * d);
      v.reserve(k.capacity());
      for (int head = 0; head < config.kv_heads; ++head) {
        rows.visit(head, [&](std::span<const f16> run) {
          for (std::size_t at = 0; at < run.size(); at += 2 * d) {
            k.insert(k.end(), run.begin() + static_cast<std::ptrdiff_t>(at),
                     run.begin() + static_cast<std::ptrdiff_t>(at + d));
            v.insert(v.end(), run.begin() + static_cast<std::ptrdiff_t>(at + d),
                     run.begin() + static_cast<std::ptrdiff_t>(at + 2 * d));
          }
        });
      }
    }
    const std::vector<std::int64_t> shape{config.kv_heads, held, config.head_dim};
    return py::make_tuple(make_array(k, shape), make_array(v, shape), position);
  }

  // windows: by layer, rows f16 [Hkv][n][2 d] of its newest n tokens.
  void save(const std::string& path, const std::string& model, const std::vector<std::int32_t>& tokens,
            const std::map<int, py::buffer>& windows, bool overwrite) {
    std::map<int, offload::SnapshotTail> tails;
    for (const auto& [layer, array] : windows) {
      const ArrayView rows(array, "F16", "the rows of a sliding-window layer");
      const std::int64_t n = rows.tensor().shape.size() == 3 ? rows.tensor().shape[1] : -1;
      const std::span<const f16> values = rows.values<f16>();
      tails[layer] = {-1, 0, n, {values.begin(), values.end()}};
    }
    const py::gil_scoped_release unlocked;
    const Use use(*this);
    const runtime::Cache& settled = cache_.settled();
    for (auto& [layer, tail] : tails) tail.position = first_global_tokens() - tail.tokens;
    runtime::save_context(settled, tokens, tails, runtime::ContextModel(model), path, overwrite, reading());
  }

  const std::vector<std::int32_t>& tokens() const { return tokens_; }

  // Says how the context was read that it was opened from, and by what it was decoded since; empty where exactly.
  std::string read_by() {
    const Use use(*this);
    const auto read = static_cast<std::int64_t>(tokens_.size());
    std::string label = runtime::reads_all(reading_.prefill, read) ? "" : runtime::prefill_label(reading_.prefill);
    const auto add = [&](const std::string& more) { label += (label.empty() ? "" : ", ") + more; };
    if (reading_.products != gpu::Products::exact) add(fmt::format("products {}", gpu::name(reading_.products)));
    for (const std::string& method : reading().approximate.methods) add(method + runtime::ApproximateTokens::suffix);
    return label;
  }
  py::dict counters() const { return counters_dict(cache_.counters()); }

 private:
  // For the length of a call.
  struct Use {
    explicit Use(OpenCache& cache) : lock(cache.busy_, std::try_to_lock) {
      if (!lock.owns_lock()) fail("the cache is in use by another thread");
    }
    std::unique_lock<std::mutex> lock;
  };

  // Returns the note of it as it is now, with the tokens that were decoded since it was opened.
  runtime::ReadingNote reading() const {
    runtime::ReadingNote now = reading_;
    now.approximate.add(cache_.approximate_tokens());
    return now;
  }

  void check_layer(int layer, bool global = true) const {
    const auto& windows = cache_.config().sliding_window;
    if (layer < 0 || layer >= cache_.config().layers || (global && windows[static_cast<std::size_t>(layer)] != 0)) {
      fail("layer {}: is none of the model's {} layers that attend to everything", layer,
           cache_.config().global_layers());
    }
  }

  std::int64_t first_global_tokens() const {
    const auto& windows = cache_.config().sliding_window;
    return cache_.tokens(static_cast<int>(std::find(windows.begin(), windows.end(), 0) - windows.begin()));
  }

  std::shared_ptr<Machine> machine_;
  std::unique_ptr<offload::Arena> arena_;
  runtime::ForeignCache cache_;
  std::vector<std::int32_t> tokens_;  // of the context it was opened from
  runtime::ReadingNote reading_;      // likewise
  std::mutex busy_;
};

py::tuple save_context(const Machine& machine, const std::vector<std::int32_t>& tokens, const py::list& k,
                       const py::list& v, const std::string& dtype, const std::string& model, const std::string& path,
                       int block_tokens, const std::string& columns, const std::string& rows, bool overwrite) {
  runtime::ForeignContext context{"save_context", tokens, {}, {}, {}};
  std::vector<ArrayView> views;
  for (const py::handle each : k) {
    views.emplace_back(py::reinterpret_borrow<py::buffer>(each), dtype, "k");
    context.k.push_back(views.back().tensor());
  }
  for (const py::handle each : v) {
    views.emplace_back(py::reinterpret_borrow<py::buffer>(each), dtype, "v");
    context.v.push_back(views.back().tensor());
  }
  runtime::ContextTokens saved;
  {
    const py::gil_scoped_release unlocked;
    const auto arena = machine.make_arena();
    saved = runtime::save_context(context, runtime::ContextModel(model), *machine.backend, *arena,
                                  cache_options(block_tokens, columns, rows, runtime::CacheOptions().window), path,
                                  overwrite);
  }
  return py::make_tuple(saved.all, saved.cached);
}

}  // namespace

void bind_cache(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<OpenCache>(module, "OpenCache")
      .def(py::init([](std::shared_ptr<Machine> machine, int query_heads, int kv_heads, int head_dim,
                       const Windows& windows, const std::string& attn, int block_tokens, const std::string& columns,
                       const std::string& rows, std::int64_t window) {
             return std::make_unique<OpenCache>(std::move(machine), shape_of(query_heads, kv_heads, head_dim, windows),
                                                cache_options(block_tokens, columns, rows, window), attn);
           }),
           py::arg("machine").none(false), py::arg("query_heads"), py::arg("kv_heads"), py::arg("head_dim"),
           py::arg("windows"), py::arg("attn"), py::arg("block_tokens"), py::arg("columns"), py::arg("rows"),
           py::arg("window"))
      .def_static("open", &OpenCache::open, unlocked, py::arg("machine").none(false), py::arg("path"),
                  py::arg("query_heads"), py::arg("windows"), py::arg("attn"))
      .def("set_method", &OpenCache::set_method, unlocked)
      .def("attend", &OpenCache::attend)
      .def("length", &OpenCache::length)
      .def("kv", &OpenCache::kv)
      .def("save", &OpenCache::save)
      .def_property_readonly("tokens", &OpenCache::tokens)
      .def_property_readonly("read_by", &OpenCache::read_by)
      .def_property_readonly("counters", &OpenCache::counters);
  module.def("save_context", save_context);
  module.def("context_windows",
             [](const std::string& model) { return runtime::ContextModel(model).config.sliding_window; });
}

}  // namespace hayloft::python
