#pragma once

#include <string>
#include <vector>

#include "runtime/eval/eval.h"

namespace hayloft::cli {

// What a user has given questions and texts of.
struct EvalInputs {
  bool squad = false;
  bool hotpotqa = false;
  bool text = false;
  bool prepared = false;  // samples that need no task of ours
};

// The tasks that --tasks asks for, each once: groups (needle, ruler, text, all) become what they hold and there is
// input for; nothing asked for becomes what the input suggests. Throws Error on a name that is unknown, or whose input
// lacks.
std::vector<std::string> expand_eval_tasks(std::vector<std::string> asked, const EvalInputs& given);

// Says on standard error which methods attended to most of their context, unless the tables, which say so too, went
// there.
void warn_of_reach(const std::vector<runtime::eval::EvalRow>& rows, bool tables_on_stderr);

}  // namespace hayloft::cli
