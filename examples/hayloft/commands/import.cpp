#include "examples/hayloft/command.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/messages.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "runtime/context/foreign_context.h"

// hayloft import: keys and values that another program computed, as a saved context.
namespace hayloft::cli {
namespace {

constexpr const char* import_examples = R"(Examples:
  hayloft import -m models/Llama-3.2-1B --in kv.safetensors --save book.hay
      what a large machine has read becomes a context
  hayloft ask book.hay -p "Who is the captain?"

In: tokens [N], I32 or I64; for each layer I from 0, layer.I.k and layer.I.v [Hkv, S, d] in F64, F32, F16 or
    BF16: keys rotated (half-split RoPE) and normed as they are attended to. Tokens behind S are read when the
    context is opened. Sliding-window layers may hold the newest tokens alone.)";

class ImportCommand : public Command {
 public:
  explicit ImportCommand(CLI::App& app) {
    app.footer(import_examples);
    add_model_option(app, model_, "");
    app.add_option("--in", in_, "File with the tokens and the keys and values of every layer")
        ->type_name("FILE.safetensors")
        ->required()
        ->take_last();
    add_store_options(app, columns_, rows_);
    add_machine_options(app, machine_);
    app.add_option("--save", save_, "Context to make")->type_name("CTX.hay")->required()->take_last();
    common(app, Section::text, {"--in"});
    common(app, Section::output, {"--save"});
  }

  void check() override {
    if (model_.empty()) fail("a model is needed: --model, the one that the context is to be opened with");
  }

  void run() override {
    offload::require_writable(save_);
    const runtime::ContextModel model(model_);
    const Environment environment(machine_);
    runtime::CacheOptions options;
    options.block_tokens = machine_.block_tokens;
    options.columns = columns_;
    options.rows = rows_;
    const runtime::ContextTokens tokens =
        runtime::import_context(in_, model, *environment.backend, *environment.arena, options, save_);
    note("{}: {} tokens, {} with keys and values\n", shown(save_), tokens.all, tokens.cached);
  }

 private:
  std::string model_;
  std::string in_;
  std::string save_;
  MachineOptions machine_;
  offload::ColumnFormat columns_ = offload::ColumnFormat::f16;
  offload::RowFormat rows_ = offload::RowFormat::f16;
};

}  // namespace

std::unique_ptr<Command> make_import_command(CLI::App& app) {
  return std::make_unique<ImportCommand>(app);
}

}  // namespace hayloft::cli
