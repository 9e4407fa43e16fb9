#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/attention.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/text_output.h"
#include "offload/output_file.h"
#include "offload/progress.h"
#include "runtime/attention/attend_file.h"

// hayloft attend: one method on the tensors of a file.
namespace hayloft::cli {
namespace {

constexpr const char* attend_examples = R"(Examples:
  hayloft attend --in qkv.safetensors --out y.safetensors
      exact attention
  hayloft attend --in qkv.safetensors --out y.safetensors --attn sparq --attn-k 1% --json -
      SparQ; what each query cost goes to standard output

In:  q [N, Hq, d] (N independent queries over one cache), k and v [Hkv, S, d]; F64, F32, F16 or BF16.
     k and v are rounded to f16 and kept as --columns and --rows say; there is no tail of new tokens.
Out: y [N, Hq, d] F32; positions I32 [N, Hkv or Hq, k or more], ascending, padded with -1, absent where a
     method attends to all; alpha [N, Hq] F32, the share of the softmax that they hold, where there is one.)";

// One method and one layer; h2o has to see a prompt being read, and is refused.
void describe_one_method(CLI::App& app) {
  std::vector<std::string> names = runtime::method_names();
  std::erase(names, "h2o");
  app.get_option("--attn")
      ->description(fmt::format("{}; options follow as in sparq:r=8:k=256", fmt::join(names, ", ")))
      ->type_name("METHOD");
  app.get_option("--attn-k")
      ->description("Positions attended, window included: a number, or a share as in 1%")
      ->type_name("K");
}

class AttendCommand : public Command {
 public:
  explicit AttendCommand(CLI::App& app) {
    app.footer(attend_examples);
    app.add_option("--in", in_, "File with the tensors q, k and v")
        ->type_name("FILE.safetensors")
        ->required()
        ->take_last();
    add_attention_options(app, attention_, {"dense"});
    describe_one_method(app);
    add_store_options(app, columns_, rows_);
    add_machine_options(app, machine_);
    app.add_option("--out", out_, "File for y, positions and alpha")
        ->type_name("FILE.safetensors")
        ->required()
        ->take_last();
    add_json_option(app, json_, "Write the counters of every query as JSON");
    common(app, Section::text, {"--in"});
    common(app, Section::output, {"--out"});
  }

  void check() override { method_ = attention_.one_method("attend", columns_); }

  void run() override {
    const TextOutput json(json_);
    json.check();
    offload::require_writable(out_);
    const Environment environment(machine_);
    std::optional<Progress> progress;
    const runtime::AttendOutput output =
        runtime::attend_file(in_, method_, *environment.backend, *environment.arena,
                             {machine_.block_tokens, columns_, rows_}, [&](std::int64_t done, std::int64_t total) {
                               check_interrupted();
                               if (!progress) progress.emplace(stderr_progress(), "attend", "queries", total);
                               progress->update(done);
                             });
    progress.reset();
    runtime::write_attend_output(out_, output);
    json.write(runtime::attend_json(output));
  }

 private:
  std::string in_;
  std::string out_;
  std::string json_;
  AttentionOptions attention_;
  MachineOptions machine_;
  offload::ColumnFormat columns_ = offload::ColumnFormat::f16;
  offload::RowFormat rows_ = offload::RowFormat::f16;
  runtime::MethodOptions method_;
};

}  // namespace

std::unique_ptr<Command> make_attend_command(CLI::App& app) {
  return std::make_unique<AttendCommand>(app);
}

}  // namespace hayloft::cli
