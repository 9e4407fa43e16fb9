#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>

#include "examples/hayloft/bundled_model.h"
#include "examples/hayloft/command.h"
#include "examples/hayloft/decoding.h"
#include "examples/hayloft/options/attention.h"
#include "examples/hayloft/options/files.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/kept.h"
#include "examples/hayloft/options/machine.h"
#include "examples/hayloft/options/ranks.h"
#include "examples/hayloft/options/rope.h"
#include "examples/hayloft/options/session.h"
#include "examples/hayloft/options/values.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/folder_text.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/process/text_input.h"
#include "examples/hayloft/run_plan.h"
#include "offload/error.h"
#include "offload/progress.h"
#include "offload/text/format.h"
#include "runtime/chat/load_chat_template.h"
#include "runtime/context/ingest.h"

// hayloft ingest: a long text, read once and saved.
namespace hayloft::cli {
namespace {

constexpr const char* ingest_examples = R"(Examples:
  hayloft ingest -m models/Llama-3.2-1B -f book.txt --save book.hay
      saves the keys and values of a book; after an interruption the same command continues
  hayloft ingest -m models/Llama-3.2-1B -f src --include '*.h' --include '*.cpp' --save code.hay
      a folder's files, each under a line with its path
  hayloft ingest -m models/Llama-3.2-1B --append book.hay -f sequel.txt
      goes on with more text
  hayloft ingest -m models/Llama-3.2-1B --update book.hay -f book-edited.txt
      reads again only from the last kept checkpoint before the first change
  hayloft ask book.hay -p "Who is the captain?")";

class IngestCommand : public Command {
 public:
  explicit IngestCommand(CLI::App& app) : app_(app) {
    app.footer(ingest_examples);
    add_model_option(app, model_, "the bundled needle model; that of the context which goes on");
    add_rope_options(app, rope_);
    app.add_option("-f,--file", files_, "Text to read, a file or folder after another; - is standard input")
        ->type_name("FILE...")
        ->required();
    app.add_option("--include", include_,
                   "Of a folder's files, those of this name or path, as in '*.py'; may be repeated")
        ->type_name("GLOB")
        ->allow_extra_args(false);
    add_prefill_options(app, options_.session);
    add_store_options(app, options_.session.cache.columns, options_.session.cache.rows);
    add_weights_option(app, machine_);
    add_machine_options(app, machine_);
    add_profile_option(app, machine_);
    CLI::Option* const save = app.add_option("--save", save_, "Context to make")->type_name("CTX.hay")->take_last();
    CLI::Option* const append =
        app.add_option("--append", append_, "Context to continue")->type_name("CTX.hay")->take_last()->excludes(save);
    app.add_option("--update", update_, "Context to make that of the text, which differs from its own somewhere")
        ->type_name("CTX.hay")
        ->take_last()
        ->excludes(save)
        ->excludes(append);
    app.add_flag("--again", options_.again, "--append: also to a context that ends with this text already");
    add_number(app, "--checkpoint-seconds", "S", options_.checkpoint_seconds, 0, 1e9,
               "Write a checkpoint to the disk this often; 0: after every chunk");
    add_text(
        app, "--checkpoints", "N",
        [this](const std::string& text) { options_.checkpoints = read_int("--checkpoints", text, 1, 64); },
        "Keep so many of the last checkpoints, for --update to go back to [as the context was made, 4 with recurrent "
        "layers, else 1]");
    add_index_option(app, indices_);
    common(app, Section::text, {"--file", "--include"});
    common(app, Section::output, {"--save", "--append", "--update"});
    advanced(app, Section::output, {"--checkpoint-seconds", "--checkpoints", "--again"});
  }

  void check() override {
    if (save_.empty() && append_.empty() && update_.empty()) {
      fail("a context is needed: --save CTX.hay, --append CTX.hay or --update CTX.hay");
    }
    std::error_code error;
    const bool folder = std::any_of(files_.begin(), files_.end(), [&](const std::string& file) {
      return file != "-" && std::filesystem::is_directory(file, error);
    });
    if (!include_.empty() && !folder) fail("--include: chooses among the files of a folder, and --file names none");
    if (options_.again && append_.empty()) fail("--again: belongs to --append");
    options_.session.cache.block_tokens = machine_.block_tokens;
    options_.choose_columns = app_.get_option("--columns")->count() == 0;
    if (options_.session.prefill.order == runtime::PrefillOptions::Order::layer) {
      fail(
          "--prefill-order layer: ingest saves chunk by chunk, so that it can go on after an interruption; leave it "
          "out");
    }
  }

  void check_ranks() const override {
    refuse_over_ranks(app_, {"--index"});
    if (std::ranges::find(files_, "-") != files_.end()) {
      fail("--file -: standard input reaches rank 0 alone; name a file that every rank can read");
    }
    require_over_ranks(machine_, options_.session, {});
  }

  void run() override {
    interrupt_first_rank_alone();
    std::filesystem::path directory;
    std::string text;
    std::optional<Environment> environment;
    prepare_together([&] {
      directory = model_to_read_with();
      text = whole_text();
      note_form(directory);
      environment.emplace(machine_, directory, rope_);
      options_.indices = make_indices(indices_, environment->model->config().head_dim);
    });
    agree(*environment, directory, text);
    runtime::plan::Plan plan;
    runtime::PrefillOptions::Kind kind{};
    options_.planned = [&](const runtime::SessionOptions& reading, std::int64_t tokens, std::int64_t stored,
                           int checkpoints) {
      check_kept_options(app_, options_.session, reading, path());
      PlannedRun run{directory, reading, {}, tokens, stored, checkpoints};
      run.saves = true;
      plan = announce_plan(*environment, run, environment->profile());
      kind = reading.prefill.kind;
    };
    const runtime::ModelSource source{*environment->model, *environment->tokenizer, directory};
    const runtime::IngestResult result = read(source, *environment->arena, text);
    report(result, result.resumed_from == 0 ? predicted_reading(plan, kind) : "");
    say_device_memory(*environment->backend);
  }

 private:
  // The context's own where one goes on; ranks may not have the whole of that, and ask for -m.
  std::filesystem::path model_to_read_with() const {
    if (!model_.empty() || !save_.empty() || over_ranks()) return model_or_bundled(model_);
    return model_of(offload::Snapshot::open(path(), offload::Snapshot::Accept::unfinished), "");
  }

  const std::string& path() const { return !save_.empty() ? save_ : !append_.empty() ? append_ : update_; }

  // Over ranks: that all of them have been asked for the same.
  void agree(const Environment& environment, const std::filesystem::path& directory, const std::string& text) {
    StartFacts facts;
    prepare_together([&] {
      const char* const what = !save_.empty() ? "--save" : !append_.empty() ? "--append" : "--update";
      facts = {weights_digest(environment, directory), shared_options(app_) + " " + what, text};
      facts.options +=
          " " + std::filesystem::path(path()).filename().string();  // shards lie beside the manifest by its name
    });
    join_ranks(facts, options_.session);
  }

  runtime::IngestResult read(const runtime::ModelSource& source, offload::Arena& arena, const std::string& text) {
    std::optional<Progress> progress;
    std::int64_t reached = 0;
    const auto show = [&](std::int64_t done, std::int64_t total) {
      if (!progress) progress.emplace(progress_sink(), "ingest", "tokens", total, done);
      progress->update(reached = done);
      check_interrupted();
    };
    options_.indexing = index_progress(progress);
    const auto say_kept = [&] {
      progress.reset();
      std::error_code error;
      if (!over_ranks() && !save_.empty() && !std::filesystem::exists(save_ + ".part", error)) {
        note("nothing is kept yet; the same command begins anew\n");
        return;
      }
      const char* const ending = save_.empty() ? "" : over_ranks() ? ".part.*" : ".part";
      note("{} tokens are kept in {}{}; the same command goes on from there\n", reached, shown(path()), ending);
    };
    try {
      const auto how = !save_.empty() ? runtime::ingest : append_.empty() ? runtime::update : runtime::append_to;
      return how(source, arena, text, path(), options_, show);
    } catch (const Interrupted&) {
      if (!over_ranks()) say_kept();
      throw;
    } catch (const runtime::StoppedTogether&) {
      say_kept();
      throw Interrupted(Interrupted::Of::all_ranks);
    }
  }

  void report(const runtime::IngestResult& result, const std::string& predicted) const {
    if (result.was_there && append_.empty()) {
      note("{}: is of this text already, {} tokens\n", shown(path()), result.tokens);
      return;
    }
    if (result.was_there) {
      note("{}: ends with this text already, {} tokens in all; nothing is added (--again adds it once more)\n",
           shown(path()), result.tokens);
      return;
    }
    if (!update_.empty()) {
      note("{}: the first {} of {} tokens are those it had; read again from token {} on, {}\n", shown(path()),
           result.same, result.tokens, result.resumed_from,
           result.resumed_from > 0 ? "the last checkpoint before" : "as it keeps no checkpoint before");
    } else if (result.resumed_from > 0) {
      note("went on from token {}\n", result.resumed_from);
    }
    const std::string shards = over_ranks() ? fmt::format(" in {} shards", rank_count()) : "";
    note("{}: {} tokens{}, {}; read {} in {:.1f} s ({:.0f} tokens/s){}\n", shown(path()), result.tokens, shards,
         format_bytes(result.file_bytes), result.read, result.seconds,
         static_cast<double>(result.read) / std::max(result.seconds, 1e-9), predicted);
    if (const std::int64_t left = result.tokens - result.resumed_from - result.read; left > 0) {
      note("the last {} tokens are read whenever the context is opened: the model's recurrent layers keep no rows\n",
           left);
    }
    const std::string read_so = runtime::prefill_read_line(result.prefill_read);
    if (!read_so.empty()) {
      note("read sparsely: {}{}\n", read_so,
           result.counts_all ? "" : ", of what this run has read; what was left out before is not known");
      if (machine_.verbose) note("{}", runtime::prefill_read_table(result.prefill_read));
    }
    if (result.columns.recall) note("{}\n", runtime::column_choice_line(result.columns, result.seconds));
  }

  static void note_form(const std::filesystem::path& directory) {
    if (!runtime::load_chat_template(directory)) return;
    note(
        "note: the text stands first, as it is, and ask writes every question behind it by the model's chat "
        "template\n");
  }

  std::string whole_text() const {
    std::string text;
    std::error_code error;
    for (const std::string& file : files_) {
      if (file == "-" || !std::filesystem::is_directory(file, error)) {
        text += read_text("--file", file);
        continue;
      }
      const FolderText folder = read_folder(file, include_);
      if (folder.files == 0) fail("--file {}: no file to read: {}", file, describe(file, folder));
      note("{}\n", describe(file, folder));
      text += folder.text;
    }
    return text;
  }

  const CLI::App& app_;
  std::string model_;
  std::vector<std::string> files_;
  std::vector<std::string> include_;
  std::string save_;
  std::string append_;
  std::string update_;
  std::vector<std::string> indices_;
  MachineOptions machine_;
  runtime::RopeOverrides rope_;
  runtime::IngestOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_ingest_command(CLI::App& app) {
  return std::make_unique<IngestCommand>(app);
}

}  // namespace hayloft::cli
