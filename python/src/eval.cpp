#include "runtime/eval/eval.h"

#include <algorithm>

#include "python/src/bindings.h"
#include "python/src/model.h"
#include "runtime/eval/json.h"
#include "runtime/eval/task.h"
#include "runtime/fidelity/attention_stats.h"
#include "runtime/fidelity/fidelity_control.h"

// hayloft.eval: tasks put to a model, by several methods, and what its attention is like meanwhile.
namespace hayloft::python {
namespace {

namespace eval = runtime::eval;

std::unique_ptr<eval::EvalTask> make_task(const OpenModel& model, const std::string& name, std::int64_t ctx_size,
                                          const std::string& haystack, std::uint64_t seed, int needles, int digits,
                                          bool chat) {
  if (name == "depths") {
    if (chat) fail("chat: the task depths asks without a chat template; leave chat out, or take a task of RULER's");
    eval::DepthsOptions options;
    options.seed = seed;
    options.needles = needles;
    options.digits = digits;
    options.haystack = haystack;
    return eval::make_depths(options, model.tokenizer, ctx_size);
  }
  eval::RulerOptions options;
  options.seed = seed;
  options.digits = digits;
  options.haystack = haystack;
  if (chat) options.chat = model_template(model);
  return eval::make_ruler_eval(name, options, model.tokenizer, ctx_size);
}

// (a line of JSON for each row, the attention's figures as JSON or nothing).
py::tuple evaluate(const OpenModel& model, const std::string& name, const std::vector<std::int64_t>& lengths,
                   const std::vector<std::string>& methods, int samples, const std::string& haystack,
                   std::uint64_t seed, int needles, int digits, bool chat, int fidelity_steps, bool attention,
                   int block_tokens, const std::string& columns, const std::string& row_names) {
  if (lengths.empty()) fail("ctx_size: name at least one length");
  if (fidelity_steps < 0) fail("fidelity_steps {}: must be 0, which measures nothing, or more", fidelity_steps);
  if (!haystack.empty() && name != "depths" && !eval::hides_in_text(name)) {
    const std::string said = "haystack: has no effect: " + name + " does not read it";
    if (PyErr_WarnEx(PyExc_RuntimeWarning, said.c_str(), 2) != 0) throw py::error_already_set();
  }
  std::vector<std::string> rows;
  eval::EvalOptions options;
  for (const std::string& method : methods) {
    const runtime::MethodOptions parsed = runtime::parse_method(method, {});
    if (std::ranges::find(options.methods, parsed) != options.methods.end()) {
      fail("attn: {} stands there twice", runtime::method_label(parsed));
    }
    options.methods.push_back(parsed);
  }
  options.auto_fidelity = runtime::default_fidelity;
  options.samples = samples;
  options.fidelity_steps = fidelity_steps;
  options.session.cache.block_tokens = block_tokens;
  options.session.cache.columns = column_format(columns);
  options.session.cache.rows = row_format(row_names);
  const auto stats = attention ? std::make_shared<runtime::AttentionStats>() : nullptr;
  options.observer = stats;
  eval::EvalHooks hooks;
  hooks.prefill = [](std::int64_t, std::int64_t) { check_signals(); };
  hooks.step = [] { check_signals(); };
  hooks.row = [&](const eval::EvalRow& row) { rows.push_back(eval::eval_row_json(row, "")); };
  {
    const py::gil_scoped_release unlocked;
    for (const std::int64_t length : lengths) {
      const auto task = make_task(model, name, length, haystack, seed, needles, digits, chat);
      run_eval(model.model, model.tokenizer, *model.arena, *task, options, hooks);
    }
  }
  return py::make_tuple(rows, stats ? py::object(py::str(attention_json(stats->report()))) : py::none());
}

}  // namespace

void bind_eval(py::module_& module) {
  module.def("evaluate", evaluate);
}

}  // namespace hayloft::python
