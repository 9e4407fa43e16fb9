#include "examples/hayloft/eval_tasks.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "examples/hayloft/streams/messages.h"
#include "offload/error.h"
#include "runtime/eval/reach.h"
#include "runtime/eval/ruler/ruler.h"

namespace hayloft::cli {
namespace {

// What the group stands for; nothing when it is none.
std::vector<std::string> tasks_of_group(const std::string& group, const EvalInputs& given) {
  std::vector<std::string> tasks;
  if (group == "needle" || group == "ruler" || group == "all") {
    for (const runtime::eval::RulerTask& task : runtime::eval::ruler_tasks()) {
      if (group == "needle" && task.name.rfind("niah", 0) != 0) continue;
      if ((task.name == "qa_1" && !given.squad) || (task.name == "qa_2" && !given.hotpotqa)) continue;
      tasks.emplace_back(task.name);
    }
  }
  if (group == "text" || (group == "all" && given.text)) tasks.insert(tasks.end(), {"perplexity", "repetition"});
  return tasks;
}

void check_task(const std::string& name, const EvalInputs& given) {
  if (name == "perplexity" || name == "repetition") {
    if (!given.text) fail("--tasks {}: needs --text", name);
    return;
  }
  if (name == "depths") return;
  if (!runtime::eval::find_ruler_task(name)) {
    std::string known;
    for (const runtime::eval::RulerTask& task : runtime::eval::ruler_tasks()) known += fmt::format("{}, ", task.name);
    fail("--tasks {}: unknown task; one of {}depths, perplexity, repetition, or needle, ruler, text, all", name, known);
  }
  if (name == "qa_1" && !given.squad) fail("--tasks qa_1: its questions come from a file; name it with --squad");
  if (name == "qa_2" && !given.hotpotqa) fail("--tasks qa_2: its questions come from a file; name it with --hotpotqa");
}

}  // namespace

std::vector<std::string> expand_eval_tasks(std::vector<std::string> asked, const EvalInputs& given) {
  if (asked.empty() && given.text) asked = {"text"};
  if (asked.empty() && !given.prepared) asked = {"needle"};
  std::vector<std::string> tasks;
  for (const std::string& name : asked) {
    std::vector<std::string> named = tasks_of_group(name, given);
    if (named.empty()) named = {name};
    for (std::string& task : named) {
      check_task(task, given);
      if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

void warn_of_reach(const std::vector<runtime::eval::EvalRow>& rows, bool tables_on_stderr) {
  if (tables_on_stderr) return;
  write_message(runtime::eval::reach_notes(runtime::eval::group_rows(rows, false)));
}

}  // namespace hayloft::cli
