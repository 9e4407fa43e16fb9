#include "runtime/attention/method.h"

#include <algorithm>

#include "python/src/bindings.h"

// Attention methods written in Python: a function that selects positions.
namespace hayloft::python {
namespace {

// Shows a function what it may look at while it is called, and counts what it has read. Positions [0, limit) of one
// layer's store.
class View {
 public:
  View(const runtime::Step& step, const runtime::SelectionPlan& plan) : step_(&step), plan_(&plan) {}

  void close() { step_ = nullptr; }
  std::int64_t tokens() const { return plan().tokens; }
  std::int64_t limit() const { return plan().limit; }
  int count() const { return plan().k; }
  int lists() const { return plan().lists; }
  int kv_heads() const { return step().at.kv_heads(); }
  int layer() const { return step().at.cache.layer; }

  // f16 [limit][d]
  py::object keys(int head) {
    check(head, "head", kv_heads());
    const int d = step().at.head_dim();
    std::vector<f16> out;
    std::vector<f16> space(static_cast<std::size_t>(2 * d));
    out.reserve(static_cast<std::size_t>(limit() * d));
    for (std::int64_t at = 0; at < limit(); ++at) {
      const f16* const row = step().at.cache.store.keys(head, at, 1, space.data());
      out.insert(out.end(), row, row + d);
    }
    read_.at(runtime::Place::near, runtime::Kind::rows) += out.size() * sizeof(f16);
    read_.elements += out.size();
    read_.positions_scored += static_cast<std::uint64_t>(limit());
    return make_array(out, {limit(), d});
  }

  // f16 [limit], one component of every key
  py::object column(int head, int component) {
    check(head, "head", kv_heads());
    check(component, "component", step().at.head_dim());
    std::vector<f16> out;
    out.reserve(static_cast<std::size_t>(limit()));
    std::vector<f16> space(static_cast<std::size_t>(2 * step().at.head_dim()));
    for (std::int64_t at = 0; at < limit(); ++at) {
      out.push_back(step().at.cache.store.keys(head, at, 1, space.data())[component]);
    }
    read_.at(runtime::Place::near, runtime::Kind::columns) += out.size() * sizeof(f16);
    read_.elements += out.size();
    return make_array(out, {limit()});
  }

  const runtime::Counters& read() const { return read_; }

 private:
  const runtime::Step& step() const {
    if (step_ == nullptr) fail("a view of keys is good for the call it was made for, and no longer");
    return *step_;
  }
  const runtime::SelectionPlan& plan() const {
    step();
    return *plan_;
  }
  static void check(int value, const char* what, int below) {
    if (value < 0 || value >= below) fail("{} {}: must be between 0 and {}", what, value, below - 1);
  }

  const runtime::Step* step_;
  const runtime::SelectionPlan* plan_;
  runtime::Counters read_;
};

// Closes a view when its call ends, also by an exception: whoever kept it must not reach a step that is over.
struct CloseAtEnd {
  ~CloseAtEnd() { view.close(); }
  View& view;
};

class PythonMethod : public runtime::Method {
 public:
  // `select` is kept for as long as the process lives.
  PythonMethod(const runtime::MethodOptions& options, const py::function& select)
      : Method(options, {.own_search = true}), select_(&select) {}

 protected:
  // Counts what the function reads as part of the step; it may choose fewer positions than it could.
  runtime::Counters attend_itself(const runtime::Step& step, const runtime::SelectionPlan& plan) const override {
    runtime::SelectionPlan chosen = plan;
    runtime::Selection selection;
    runtime::Counters read;
    if (plan.k > 0) {
      const std::vector<float> query = runtime::query_on_host(step);
      const py::gil_scoped_acquire locked;
      const auto view = std::make_shared<View>(step, plan);
      const CloseAtEnd close{*view};
      const py::object result = (*select_)(make_array(query, {step.at.query_heads, step.at.head_dim()}), view);
      read = view->read();
      selection.positions = positions(result, chosen);
    } else {
      chosen.k = 0;
    }
    step.attender.attend(step, chosen, selection, {});
    runtime::Counters counters = counted(step.at.cache, chosen);
    counters.positions_scored = 0;
    counters += read;
    return counters;
  }

  runtime::Counters count_planned(const gpu::CacheView& cache, const runtime::SelectionPlan& plan) const override {
    runtime::Counters counters = counted(cache, plan);
    count_exact_keys(counters, cache);
    const runtime::StepTerms n(cache, plan);
    counters.elements += n.heads * n.S * n.d;
    return counters;
  }

 private:
  // Counts rows; what a function reads before is its own.
  static runtime::Counters counted(const gpu::CacheView& cache, const runtime::SelectionPlan& plan) {
    const runtime::StepTerms n(cache, plan);
    runtime::Counters counters = count_selection(cache, plan);
    counters.elements = n.heads * runtime::window_elements(n.k, n.d);
    return counters;
  }

  // Checks what the function returned, [lists][n] with n at most plan.k, which becomes n; sorted. Whole numbers alone:
  // 3.7 is no position, nor is a mask a list of them.
  std::vector<std::int32_t> positions(const py::object& result, runtime::SelectionPlan& plan) const {
    const py::module_ numpy = py::module_::import("numpy");
    const py::object given = numpy.attr("asarray")(result);
    const auto kind = given.attr("dtype").attr("kind").cast<std::string>();
    if (kind != "i" && kind != "u" && given.attr("size").cast<std::int64_t>() > 0) {
      fail("--attn {}: the function returned positions of dtype {}; they must be whole numbers", options().name,
           py::str(given.attr("dtype")).cast<std::string>());
    }
    const py::object array = numpy.attr("ascontiguousarray")(given, "int64");
    const ArrayView view(array, "I64", "the positions");
    const std::vector<std::int64_t>& shape = view.tensor().shape;
    if (shape.size() != 2 || shape[0] != plan.lists || shape[1] > plan.k) {
      fail("--attn {}: the function returned positions [{}]; they must be [{}, at most {}]", options().name,
           fmt::join(shape, ", "), plan.lists, plan.k);
    }
    const std::span<const std::int64_t> values = view.values<std::int64_t>();
    std::vector<std::int64_t> sorted(values.begin(), values.end());
    plan.k = static_cast<int>(shape[1]);
    if (plan.k == 0 && plan.limit == plan.tokens && plan.sinks == 0) {
      fail("--attn {}: the function returned no positions, and there is no tail or window to attend to",
           options().name);
    }
    for (std::int64_t list = 0; list < shape[0]; ++list) {
      const auto begin = sorted.begin() + list * plan.k;
      std::sort(begin, begin + plan.k);
      if (plan.k > 0 && (*begin < 0 || begin[plan.k - 1] >= plan.limit)) {
        fail("--attn {}: the function returned positions from {} to {}; they must be in [0, {})", options().name,
             *begin, begin[plan.k - 1], plan.limit);
      }
      const auto twice = std::adjacent_find(begin, begin + plan.k);
      if (twice != begin + plan.k) fail("--attn {}: the function returned position {} twice", options().name, *twice);
    }
    return {sorted.begin(), sorted.end()};
  }

  const py::function* select_;
};

void register_method(const std::string& name, const py::function& select) {
  const auto* const kept = new py::function(select);  // methods may be used until the process ends
  runtime::register_method(
      name, [kept](const runtime::MethodOptions& options) { return std::make_unique<PythonMethod>(options, *kept); });
}

}  // namespace

void bind_method(py::module_& module) {
  py::class_<View, std::shared_ptr<View>>(module, "View")
      .def_property_readonly("tokens", &View::tokens)
      .def_property_readonly("limit", &View::limit)
      .def_property_readonly("count", &View::count)
      .def_property_readonly("lists", &View::lists)
      .def_property_readonly("kv_heads", &View::kv_heads)
      .def_property_readonly("layer", &View::layer)
      .def("keys", &View::keys)
      .def("column", &View::column);
  module.def("register_method", register_method);
}

}  // namespace hayloft::python
