#include "examples/hayloft/command.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/process/messages.h"
#include "offload/host/topology.h"
#include "offload/output_file.h"
#include "runtime/context/foreign_context.h"

// hayloft export: the keys and values of a saved context, for other programs.
namespace hayloft::cli {
namespace {

constexpr const char* export_examples = R"(Examples:
  hayloft export book.hay --out kv.safetensors

Out: tokens I32 [N]; for each layer I from 0, layer.I.k and layer.I.v F16 [Hkv, S, d], keys rotated
     (half-split RoPE) and normed as they are attended to. Sliding-window layers hold the newest tokens alone.)";

class ExportCommand : public Command {
 public:
  explicit ExportCommand(CLI::App& app) {
    app.footer(export_examples);
    add_context_argument(app, context_, "Saved context, made by hayloft ingest");
    app.add_option("--out", out_, "File for the tokens and the keys and values of every layer")
        ->type_name("FILE.safetensors")
        ->required()
        ->take_last();
    common(app, Section::output, {"--out"});
  }

  void check() override {}

  void run() override {
    offload::require_writable(out_);
    const offload::Snapshot snapshot = offload::Snapshot::open(context_);
    const offload::Topology topology;
    offload::Arena arena(topology);
    const runtime::ContextTokens tokens = runtime::export_context(snapshot, arena, out_);
    note("{}: {} tokens, {} with keys and values\n", shown(out_), tokens.all, tokens.cached);
  }

 private:
  std::string context_;
  std::string out_;
};

}  // namespace

std::unique_ptr<Command> make_export_command(CLI::App& app) {
  return std::make_unique<ExportCommand>(app);
}

}  // namespace hayloft::cli
