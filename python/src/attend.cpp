#include "runtime/attention/attend.h"

#include "index/scan/exact_search.h"
#include "python/src/bindings.h"
#include "python/src/machine.h"
#include "python/src/model.h"

// hayloft.attend and hayloft.search: methods on arrays.
namespace hayloft::python {

offload::ColumnFormat column_format(const std::string& text) {
  if (const auto format = offload::column_format(text)) return *format;
  fail("columns '{}': must be one of {}", text, offload::column_format_names());
}

offload::RowFormat row_format(const std::string& text) {
  if (const auto format = offload::row_format(text)) return *format;
  fail("rows '{}': must be one of {}", text, offload::row_format_names());
}

py::dict counters_dict(const runtime::Counters& counters) {
  py::dict bytes;
  for (int place = 0; place < runtime::place_count; ++place) {
    py::dict kinds;
    for (int kind = 0; kind < runtime::kind_count; ++kind) {
      kinds[runtime::name(static_cast<runtime::Kind>(kind))] =
          counters.at(static_cast<runtime::Place>(place), static_cast<runtime::Kind>(kind));
    }
    bytes[runtime::name(static_cast<runtime::Place>(place))] = kinds;
  }
  py::dict all;
  all["elements"] = counters.elements;
  all["positions_scored"] = counters.positions_scored;
  all["rows_fetched"] = counters.rows_fetched;
  all["bytes"] = bytes;
  return all;
}

namespace {

py::dict attend(const Machine& machine, const py::buffer& q, const std::string& q_type, const py::buffer& k,
                const std::string& k_type, const py::buffer& v, const std::string& v_type, const std::string& method,
                int block_tokens, const std::string& columns, const std::string& rows) {
  const ArrayView queries(q, q_type, "q");
  const ArrayView keys(k, k_type, "k");
  const ArrayView values(v, v_type, "v");
  runtime::AttendOutput output;
  {
    const py::gil_scoped_release unlocked;
    const auto arena = machine.make_arena();
    output =
        runtime::attend({"attend", queries.tensor(), keys.tensor(), values.tensor()}, runtime::parse_method(method, {}),
                        *machine.backend, *arena, {block_tokens, column_format(columns), row_format(rows)},
                        [](std::int64_t, std::int64_t) { check_signals(); });
  }
  py::dict result;
  result["y"] = make_array(output.y, {output.queries, output.query_heads, output.head_dim});
  result["positions"] = py::none();
  if (output.lists > 0) {
    result["positions"] = make_array(output.positions, {output.queries, output.lists, output.width});
  }
  result["alpha"] = py::none();
  if (!output.alpha.empty()) result["alpha"] = make_array(output.alpha, {output.queries, output.query_heads});
  py::list counters;
  for (const runtime::Counters& each : output.counters) counters.append(counters_dict(each));
  result["counters"] = counters;
  return result;
}

py::object search(const Machine& machine, const py::buffer& q, const std::string& q_type, const py::buffer& k,
                  const std::string& k_type, int count, const std::string& per, const std::string& group,
                  int block_tokens) {
  const ArrayView queries(q, q_type, "q");
  const ArrayView keys(k, k_type, "k");
  if (per != "query-head" && per != "kv-head") fail("per '{}': must be one of query-head, kv-head", per);
  if (group != "softmax" && group != "logits") fail("group '{}': must be one of softmax, logits", group);
  const bool per_query_head = per == "query-head";
  std::vector<std::int32_t> positions;
  std::int64_t lists = 0;
  {
    const py::gil_scoped_release unlocked;
    const runtime::AttendTensors tensors{"search", queries.tensor(), keys.tensor(), keys.tensor()};
    runtime::check_tensors(tensors);
    const auto query_heads = static_cast<int>(tensors.q.shape[1]);
    const std::int64_t query_elements = tensors.q.shape[1] * tensors.q.shape[2];
    const std::vector<float> query = runtime::finite_queries(tensors);
    const auto arena = machine.make_arena();
    const offload::Store store =
        make_store(tensors, *arena, {block_tokens, offload::ColumnFormat::f16}, machine.threads);
    if (count < 1 || count > store.tokens(0)) fail("k {}: must be between 1 and the {} keys", count, store.tokens(0));
    const index::ExactSearch exact{query_heads, store.tokens(0), count,
                                   group == "softmax" ? index::GroupRule::softmax : index::GroupRule::logits,
                                   per_query_head ? index::SelectPer::query_head : index::SelectPer::kv_head};
    lists = per_query_head ? tensors.q.shape[1] : tensors.k.shape[0];
    positions.resize(static_cast<std::size_t>(tensors.q.shape[0] * lists * count));
    std::vector<float> max(static_cast<std::size_t>(query_heads));
    std::vector<float> sum(static_cast<std::size_t>(query_heads));
    for (std::int64_t n = 0; n < tensors.q.shape[0]; ++n) {
      std::fill(max.begin(), max.end(), -std::numeric_limits<float>::infinity());
      std::fill(sum.begin(), sum.end(), 0.0f);
      index::SearchResult result;
      result.positions = positions.data() + n * lists * count;
      if (index::needs_tail_softmax(exact)) {
        result.max = max.data();
        result.sum = sum.data();
      }
      index::search_exact(store.layer(0), query.data() + n * query_elements, exact, machine.threads, result);
      check_signals();
    }
  }
  return make_array(positions, {queries.tensor().shape[0], lists, count});
}

}  // namespace

void bind_attend(py::module_& module) {
  module.def("attend", attend);
  module.def("search", search);
  module.def("method_names", runtime::method_names);
  module.def("check_method", [](const std::string& method) { runtime::parse_method(method, {}); });
}

}  // namespace hayloft::python
