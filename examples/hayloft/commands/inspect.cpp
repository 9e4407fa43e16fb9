#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/text_output.h"
#include "examples/hayloft/saved_context.h"
#include "offload/error.h"
#include "offload/progress.h"
#include "offload/snapshot/snapshot.h"
#include "offload/text/format.h"
#include "offload/text/json_text.h"
#include "offload/text/visible.h"
#include "runtime/context/column_choice.h"
#include "runtime/context/earlier_reads.h"
#include "runtime/context/ingest.h"
#include "runtime/context/text_end.h"

// hayloft inspect: what a saved context holds, and whether it is sound.
namespace hayloft::cli {
namespace {

constexpr const char* inspect_examples = R"(Examples:
  hayloft inspect book.hay
  hayloft inspect book.hay --verify --json -)";

class InspectCommand : public Command {
 public:
  explicit InspectCommand(CLI::App& app) {
    app.footer(inspect_examples);
    add_context_argument(app, context_, "Saved context, made by hayloft ingest, or its unfinished .part");
    app.add_flag("--verify", verify_, "Read everything, check every checksum, and compute the content digest");
    add_json_option(app, json_, "Write it as JSON");
    common(app, Section::task, {"--verify"});
  }

  void check() override {}

  void run() override {
    const TextOutput json(json_);
    json.check();
    const offload::Snapshot snapshot = offload::Snapshot::open(context_, offload::Snapshot::Accept::unfinished);
    const offload::SnapshotDescription& what = snapshot.description();
    nlohmann::ordered_json report = {
        {"schema", "hayloft.inspect/1"},
        {"file", context_},
        {"bytes", snapshot.file_bytes()},
        {"shards", snapshot.files()},
        {"complete", snapshot.complete()},
        {"model", what.model.name},
        {"model_fingerprint", fmt::format("{:02x}", fmt::join(what.model.fingerprint, ""))},
        {"tokens", snapshot.token_count()},
        {"layers", what.model_layers},
        {"global_layers", what.shape.layers},
        {"kv_heads", what.shape.kv_heads},
        {"head_dim", what.shape.head_dim},
        {"block_tokens", what.shape.block_tokens},
        {"columns", offload::name(what.shape.columns)},
        {"rows", offload::name(what.shape.rows)},
        {"stored_tokens", what.shape.layers > 0 ? snapshot.stored_tokens(0) : 0},
        {"note", what.note},
        {"indices", indices_of(snapshot)},
        {"earlier_checkpoints", snapshot.earlier_checkpoints()},
    };
    const auto recall = measured_columns(snapshot);
    if (recall) {
      report["column_choice"] = runtime::column_recall_json(*recall);
    }
    runtime::PrefillRead read;
    std::string read_so;
    try {
      read = runtime::whole_prefill_read(snapshot);
      read_so = runtime::prefill_read_line(read);
    } catch (const Error& damaged) {
      read_so = damaged.what();
    }
    if (!read_so.empty()) {
      report["read_sparsely"] = read_so;
      if (!read.empty()) report["read_sparsely_by_layer"] = runtime::prefill_read_json(read);
    }
    if (verify_) {
      snapshot.verify(progress("verify"));
      report["verified"] = true;
      if (const std::string damaged = snapshot.damaged_slot(); !damaged.empty()) {
        report["damaged_slot"] = damaged;
        note(
            "warning: {}; the other is whole, and so is the context, but nothing stands in for that one: keep a copy "
            "and check the disk\n",
            visible(damaged, Lines::joined));
      }
      report["content_digest"] = snapshot.content_digest(progress("digest"));
    }
    if (json.wanted()) json.write(json_document(report));
    if (json.to_stdout()) return;
    for (const auto& [name, value] : report.items()) {
      if (name == "column_choice" || name == "read_sparsely_by_layer") continue;  // tables
      const std::string text = value.is_string() ? value.get<std::string>() : json_line(value);
      print(fmt::format("{:18} {}\n", name, visible(text, Lines::joined)));
    }
    if (recall) print(runtime::column_recall_table(*recall));
    if (!read.empty()) print(runtime::prefill_read_table(read));
  }

 private:
  // Returns what methods keep of it; the end of the text lies beside them.
  static std::vector<std::string> indices_of(const offload::Snapshot& snapshot) {
    std::vector<std::string> names = snapshot.attachments();
    std::erase(names, runtime::text_end_name);
    std::erase(names, runtime::column_recall_name);
    std::erase(names, runtime::prefill_read_name);
    std::erase(names, runtime::whole_prefill_read_name);
    std::erase(names, runtime::earlier_reads_name);
    return names;
  }

  static offload::SnapshotProgress progress(const char* what) {
    return [line = std::shared_ptr<Progress>(), what](std::uint64_t bytes, std::uint64_t total) mutable {
      check_interrupted();
      if (!line) {
        line = std::make_shared<Progress>(stderr_progress(), what, "bytes", static_cast<std::int64_t>(total));
      }
      line->update(static_cast<std::int64_t>(bytes));
    };
  }

  std::string context_;
  bool verify_ = false;
  std::string json_;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command(CLI::App& app) {
  return std::make_unique<InspectCommand>(app);
}

}  // namespace hayloft::cli
