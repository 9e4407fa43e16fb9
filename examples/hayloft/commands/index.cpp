#include "examples/hayloft/command.h"
#include "examples/hayloft/decoding.h"
#include "examples/hayloft/options/attention.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/kept.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/rope.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/saved_context.h"
#include "offload/error.h"
#include "offload/text/format.h"
#include "runtime/context/ingest.h"

// hayloft index: indices for a saved context, saved with it.
namespace hayloft::cli {
namespace {

constexpr const char* index_examples = R"(Examples:
  hayloft index book.hay --index ann
      the index that suits its length, so that ask need not build it each time
  hayloft index book.hay --index ann:IVF1024,SQ8 --index ann:HNSW32,Flat
  hayloft ask book.hay --attn ann:IVF1024,SQ8 -p "Who is the captain?")";

class IndexCommand : public Command {
 public:
  explicit IndexCommand(CLI::App& app) : app_(app) {
    app.footer(index_examples);
    add_context_argument(app, context_, "Saved context, made by hayloft ingest");
    add_model_option(app, model_, "where it was when the context was made");
    add_rope_options(app, rope_);
    add_weights_option(app, machine_);
    add_machine_options(app, machine_);
    add_index_option(app, indices_);
  }

  void check() override {
    if (indices_.empty()) indices_ = {"ann"};
  }

  void run() override {
    const std::filesystem::path directory = [this] {
      const offload::Snapshot snapshot = offload::Snapshot::open(context_);
      check_kept_blocks(app_, machine_.block_tokens, snapshot.description().shape.block_tokens, context_);
      return model_of(snapshot, model_);
    }();
    const Environment environment(machine_, directory, rope_);
    const runtime::ModelSource source{*environment.model, *environment.tokenizer, directory};
    std::optional<Progress> progress;
    runtime::IngestOptions options;
    options.indices = make_indices(indices_, environment.model->config().head_dim);
    options.indexing = index_progress(progress);
    const bool added = add_indices(source, *environment.arena, context_, options);
    progress.reset();
    const offload::Snapshot made = offload::Snapshot::open(context_);
    for (const auto& method : options.indices) {
      const std::string name = method->state_key();
      note("{}: {}, {}\n", shown(context_), name, format_bytes(made.attachment(name)->size()));
    }
    note("{}: {} in all{}\n", shown(context_), format_bytes(made.file_bytes()),
         added ? "" : "; it had them already, and nothing was written");
  }

 private:
  const CLI::App& app_;
  std::string context_;
  std::string model_;
  std::vector<std::string> indices_;
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
};

}  // namespace

std::unique_ptr<Command> make_index_command(CLI::App& app) {
  return std::make_unique<IndexCommand>(app);
}

}  // namespace hayloft::cli
