#include "runtime/machine/gpu_check/gpu_check_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "gpu/device_plan.h"
#include "offload/text/format.h"

namespace hayloft::runtime::plan::check {
namespace {

// Whether two needle runs asked the same questions of the same model.
bool same_questions(const Json& a, const Json& b) {
  return text(a, "model") == text(b, "model") && number(a, "seed") == number(b, "seed") &&
         text(a, "columns") == text(b, "columns") && text(a, "prefill") == text(b, "prefill") &&
         text(a, "weights") == text(b, "weights");
}

}  // namespace

Shown judge_tests(const std::vector<Step>& steps, Checker checker) {
  const bool checked = checker == Checker::sanitizer;
  Shown shown{checked ? "CUDA tests under compute-sanitizer" : "CUDA tests", "", "all pass", Verdict::unmeasured};
  const auto step = std::find_if(steps.begin(), steps.end(),
                                 [&](const Step& s) { return s.name == (checked ? "sanitizer" : "tests"); });
  if (step == steps.end()) return shown;
  if (step->outcome == "skipped") {
    shown.figure = "skipped: not on this machine";
    shown.verdict = Verdict::no_bar;
    return shown;
  }
  const double passed = number(*step->data, "passed");
  const double failed = number(*step->data, "failed");
  const double skipped = number(*step->data, "skipped");
  const double late = number(*step->data, "out_of_time");
  shown.figure = fmt::format("{:.0f} passed, {:.0f} failed, {:.0f} skipped", passed, failed, skipped);
  if (late > 0) shown.figure += fmt::format(", {:.0f} suites out of time", late);
  shown.figure += "; " + step->outcome;
  const bool nothing_wrong = failed == 0 && (step->outcome == "passed" || step->outcome == "out of time");
  if (passed + failed + late == 0 || (checked && nothing_wrong && step->outcome != "passed")) return shown;
  shown.verdict = met_if(failed == 0 && step->outcome == "passed");
  return shown;
}

Shown judge_needles(const std::vector<Step>& steps, std::int64_t tokens) {
  Shown shown{fmt::format("needle at {}: answers as on the CPU", format_count(tokens)), "", "all", Verdict::unmeasured};
  std::map<std::string, std::pair<int, int>> found;  // by method: found, asked
  int compared = 0, equal = 0;
  std::set<std::string> methods;  // compared
  for (const Step& step : steps) {
    if (!step.is("hayloft.needle/1") || !step.on_cuda()) continue;
    for (const Json& row : part(*step.data, "rows")) {
      if (static_cast<std::int64_t>(number(row, "tokens")) != tokens) continue;
      for (const Step& other : steps) {
        if (!other.is("hayloft.needle/1") || other.on_cuda() || !same_questions(*step.data, *other.data)) continue;
        for (const Json& cpu : part(*other.data, "rows")) {
          if (text(cpu, "method") != text(row, "method") || number(cpu, "tokens") != number(row, "tokens") ||
              number(cpu, "depth") != number(row, "depth"))
            continue;
          ++compared;
          equal += text(cpu, "answer") == text(row, "answer");
          methods.insert(text(row, "attn"));
          auto& [hits, asked] = found[text(row, "method")];
          hits += number(row, "hit") > 0;
          ++asked;
        }
      }
    }
  }
  if (compared == 0) return shown;
  shown.figure = fmt::format("{} of {}; found", equal, compared);
  const char* separator = " ";
  for (const auto& [method, count] : found) {
    shown.figure += fmt::format("{}{} {}/{}", separator, method, count.first, count.second);
    separator = ", ";
  }
  const bool all_methods = methods.count("dense") > 0 && methods.count("sparq") > 0 && methods.count("topk") > 0;
  shown.verdict = met_if(equal == compared && all_methods);
  return shown;
}

std::set<std::int64_t> needle_lengths(const std::vector<Step>& steps) {
  std::set<std::int64_t> lengths;
  for (const Step& step : steps) {
    if (!step.is("hayloft.needle/1")) continue;
    for (const Json& row : part(*step.data, "rows")) lengths.insert(static_cast<std::int64_t>(number(row, "tokens")));
  }
  return lengths;
}

Shown judge_memory(const std::vector<Step>& steps, const char* what, const char* field) {
  Shown shown{what, "", "at most the budget", Verdict::unmeasured};
  double worst = 0;
  for (const Step& step : steps) {
    const Json& memory = part(*step.data, "device_memory");
    const double peak = number(memory, field), budget = number(memory, "budget_bytes");
    if (budget <= 0 || peak <= 0 || peak / budget < worst) continue;
    worst = peak / budget;
    shown.figure = fmt::format("{} of {} ({})", format_bytes(static_cast<std::uint64_t>(peak)),
                               format_bytes(static_cast<std::uint64_t>(budget)), step.name);
    shown.verdict = met_if(peak <= budget);
  }
  return shown;
}

Shown judge_device(const std::vector<Step>& steps) {
  Shown shown{"device memory, as nvidia-smi sees it, CUDA's own included", "", "at most --gpu-memory, or what was free",
              Verdict::unmeasured};
  constexpr double mebibyte = 1 << 20;
  double worst = 0;
  for (const Step& step : steps) {
    const double taken = number(*step.entry, "device_peak_MiB") - number(*step.entry, "device_before_MiB");
    const double budget = number(part(*step.data, "device_memory"), "budget_bytes");
    if (taken <= 0 || budget <= 0) continue;
    const double asked = (budget + static_cast<double>(gpu::cuda_context_bytes)) / mebibyte;
    if (taken / asked < worst) continue;
    worst = taken / asked;
    shown.figure = fmt::format("{:.0f} of {:.0f} MiB ({})", taken, asked, step.name);
    shown.verdict = met_if(taken <= asked);
  }
  return shown;
}

}  // namespace hayloft::runtime::plan::check
