#include <algorithm>
#include <fstream>
#include <string>

#include "examples/hayloft/command.h"
#include "examples/hayloft/text_output.h"
#include "offload/error.h"
#include "runtime/gpu_check.h"

// hayloft judge: whether a run of gpu-check shows what it must.
namespace hayloft::cli {
namespace {

constexpr const char* examples = R"(Examples:
  hayloft judge results/gpu-check.json
      a line for everything that is asked of a machine with a GPU; ends with 1 when one of them is not met
  hayloft judge gpu-check.json --json gpu-check.json
      put the lines into the report itself)";

class JudgeCommand : public Command {
 public:
  explicit JudgeCommand(CLI::App& app) {
    app.footer(examples);
    app.add_option("report", report_, "What gpu-check left: gpu-check.json")->type_name("FILE")->required();
    app.add_option("--json", json_, "Write the report with these lines in it; - is standard output")
        ->type_name("FILE|-")
        ->take_last();
  }

  void check() override {}

  void run() override {
    const TextOutput output(json_);
    output.check();
    nlohmann::ordered_json report = read();
    const std::vector<runtime::Shown> lines = runtime::judge_gpu_check(report);
    if (!output.to_stdout()) print(runtime::shown_table(lines));
    report["shows"] = runtime::shown_json(lines);
    output.write(report.dump(1) + "\n");
    const auto count = [&](runtime::Verdict verdict) {
      return std::count_if(lines.begin(), lines.end(), [&](const runtime::Shown& s) { return s.verdict == verdict; });
    };
    const auto missed = count(runtime::Verdict::missed), unmeasured = count(runtime::Verdict::unmeasured);
    if (missed + unmeasured > 0) fail("{} lines are not met and {} not measured", missed, unmeasured);
  }

 private:
  // In the order of the file, which is that of a step's stages.
  nlohmann::ordered_json read() const {
    std::ifstream file(report_, std::ios::binary);
    if (!file) fail("{}: cannot be read", report_);
    nlohmann::ordered_json report = nlohmann::ordered_json::parse(file, nullptr, false);
    if (report.is_discarded()) fail("{}: not JSON", report_);
    return report;
  }

  std::string report_;
  std::string json_;
};

}  // namespace

std::unique_ptr<Command> make_judge_command(CLI::App& app) {
  return std::make_unique<JudgeCommand>(app);
}

}  // namespace hayloft::cli
