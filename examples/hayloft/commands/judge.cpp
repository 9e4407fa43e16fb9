#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/process/text_output.h"
#include "offload/error.h"
#include "offload/text_file.h"
#include "runtime/machine/gpu_check/gpu_check.h"

// hayloft judge: whether a run of gpu-check shows what it must.
namespace hayloft::cli {
namespace {

constexpr const char* judge_examples = R"(Examples:
  hayloft judge results/gpu-check.json
      a line for everything asked of a machine with a GPU; exit code 1 when one is not met
  hayloft judge gpu-check.json --json gpu-check.json
      put the lines into the report itself)";

class JudgeCommand : public Command {
 public:
  explicit JudgeCommand(CLI::App& app) {
    app.footer(judge_examples);
    app.add_option("report", report_, "The gpu-check.json that scripts/gpu-check wrote")->type_name("FILE")->required();
    app.add_flag("--partial", partial_, "Ignore lines that were not measured: for a run of some steps only");
    add_json_option(app, json_, "Write the report with these lines in it");
    common(app, Section::model, {"report"});
    common(app, Section::task, {"--partial"});
  }

  void check() override {}

  void run() override {
    const TextOutput output(json_);
    output.check();
    nlohmann::ordered_json report = read();
    const std::vector<runtime::plan::Shown> lines = judge(report);
    if (!output.to_stdout()) print(runtime::plan::shown_table(lines));
    report["shows"] = runtime::plan::shown_json(lines);
    output.write(report.dump(1) + "\n");
    const auto count = [&](runtime::plan::Verdict verdict) {
      return std::count_if(lines.begin(), lines.end(),
                           [&](const runtime::plan::Shown& s) { return s.verdict == verdict; });
    };
    const auto missed = count(runtime::plan::Verdict::missed), unmeasured = count(runtime::plan::Verdict::unmeasured);
    if (missed > 0 || (unmeasured > 0 && !partial_))
      fail("{} lines are not met and {} not measured", missed, unmeasured);
  }

 private:
  // In the order of the file, which is that of a step's stages.
  nlohmann::ordered_json read() const {
    constexpr const char* advice = "name the gpu-check.json that gpu-check left";
    std::error_code error;
    if (std::filesystem::is_directory(report_, error)) fail("{}: a folder; {}", report_, advice);
    std::string text;
    try {
      text = offload::read_text_file("", report_);
    } catch (const Error& refused) {
      fail("{}; {}", refused.what(), advice);
    }
    try {
      return nlohmann::ordered_json::parse(text);
    } catch (const nlohmann::json::parse_error& problem) {
      fail("{}: not valid JSON at byte {}; {}", report_, problem.byte, advice);
    } catch (const nlohmann::json::exception&) {  // such as a number that no double can hold
      fail("{}: not valid JSON: a value in it is out of range; {}", report_, advice);
    }
  }

  std::vector<runtime::plan::Shown> judge(const nlohmann::ordered_json& report) const {
    try {
      return runtime::plan::judge_gpu_check(report);
    } catch (const Error& error) {
      fail("{}: {}", report_, error.what());
    }
  }

  std::string report_;
  std::string json_;
  bool partial_ = false;
};

}  // namespace

std::unique_ptr<Command> make_judge_command(CLI::App& app) {
  return std::make_unique<JudgeCommand>(app);
}

}  // namespace hayloft::cli
