#include <fmt/format.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>
#include <sstream>

#include "examples/hayloft/command.h"
#include "examples/hayloft/options/help.h"
#include "examples/hayloft/options/llama_options.h"
#include "examples/hayloft/process/environment.h"
#include "examples/hayloft/process/file_roles.h"
#include "examples/hayloft/process/interrupt.h"
#include "examples/hayloft/process/messages.h"
#include "examples/hayloft/process/ranks.h"
#include "examples/hayloft/process/text_input.h"
#include "examples/hayloft/process/text_output.h"
#include "examples/hayloft/version.h"
#include "gpu/make_backend.h"
#include "offload/error.h"
#include "offload/host/instruction_set.h"
#include "offload/host/mapped_file.h"
#include "offload/text/visible.h"
#include "offload/waiting.h"

// The program: subcommands, exit codes (0 done, 1 an error, 2 wrong usage, 3 a plan that does not
// fit, 4 a GPU lost to this process, 130 interrupted), one line per error.
namespace hayloft::cli {
namespace {

constexpr const char* examples = R"(Examples:
  hayloft needle --ctx-size 64k,256k --attn dense,sparq --plot needle.svg
  hayloft generate -m models/Llama-3.2-1B -f book.txt -n 256 --attn sparq

hayloft COMMAND --help shows what most people need of a command, --help-all every option.)";

constexpr int error_exit = 1;
constexpr int usage_exit = 2;
constexpr int lost_exit = 4;
constexpr int interrupted_exit = 130;  // 128 + SIGINT, as shells count

// Messages may hold names from files, so they are made fit for one line of a terminal.
int report(std::string_view message, int exit_code) noexcept {
  try {
    note("hayloft: {}\n", shown(bounded_message(std::string(message))));
  } catch (...) {  // no memory to do so
    write_message("hayloft: ");
    write_message(message);
    write_message("\n");
  }
  return exit_code;
}

// An error that only this rank knows of: says so, whichever it is, and ends the others. Alone: report().
int report_and_end_ranks(const std::string& message, int exit_code) noexcept {
  if (ranks() == nullptr) {
    let_first_rank_speak(message);
    return report(message, exit_code);
  }
  try {
    write_error(fmt::format("hayloft: rank {}: {}\n", ranks()->rank(), visible(message, Lines::joined)));
  } catch (...) {
    write_error("hayloft: a rank has no memory left\n");
  }
  abort_ranks();
  return exit_code;
}

struct Program {
  CLI::App app{"Million-token contexts with keys and values in host memory"};
  bool list_devices = false;
  std::string asked;  // the command that the first argument names
  std::map<CLI::App*, std::unique_ptr<Command>> commands;

  Program() {
    app.name("hayloft");
    app.footer(examples);
    app.formatter(std::make_shared<HelpFormatter>());
    app.set_help_flag("-h,--help", "Print the options that most people need");
    app.set_help_all_flag("--help-all", "Print every option");
    app.set_version_flag("--version", version_text, "Print the version, and what it was built with and runs on");
    app.add_flag("--list-devices", list_devices, "Print what --device can name here");
    app.require_subcommand(0, 1);
    const auto add = [&](const char* name, const char* help, auto make) {
      CLI::App* const subcommand = app.add_subcommand(name, help);
      commands[subcommand] = make(*subcommand);
    };
    add("generate", "Continue a text", make_generate_command);
    add("chat", "Talk with a model, also about a saved context", make_chat_command);
    add("ingest", "Read a long text once and save it as a context", make_ingest_command);
    add("ask", "Ask a saved context questions", make_ask_command);
    add("serve", "Answer requests over HTTP, as OpenAI's API has them", make_serve_command);
    add("index", "Build indices for a saved context and save them with it", make_index_command);
    add("import", "Save keys and values that another program computed as a context", make_import_command);
    add("export", "Write the keys and values of a saved context for other programs", make_export_command);
    add("inspect", "Show what a saved context holds, and whether it is intact", make_inspect_command);
    add("needle", "Find needles in a haystack, over methods, context lengths and depths", make_needle_command);
    add("eval", "Run RULER's tasks and measures on a text, over methods and context lengths", make_eval_command);
    add("attend", "Run one attention method on the tensors of a file", make_attend_command);
    add("plan", "Predict the memory and the time per token of a run", make_plan_command);
    add("bench", "Time attention at the shape of a model, over random keys and values", make_bench_command);
    add("link", "Measure this machine's memory and link, and keep the profile that plan reads", make_link_command);
  }

  // Returns what the command line asks for instead of a command; nothing where it asks for one.
  std::optional<std::string> answer() const {
    if (list_devices) return cli::list_devices();
    return std::nullopt;
  }

  // Null when the command line asked for an answer() and no more.
  Command* parse(int argc, char** argv) {
    require_command(argc, argv);
    require_no_habits(argc, argv);
    app.parse(argc, argv);
    if (list_devices) return nullptr;
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    if (chosen.empty()) fail("a command is needed, one of {}", command_names());
    Command* const command = commands.at(chosen.front()).get();
    check_files(*chosen.front());
    check_typed_texts(*chosen.front());
    command->check();
    if (over_ranks()) command->check_ranks();
    return command;
  }

  std::string command_names() const {
    std::string names;
    for (const CLI::App* each : app.get_subcommands({})) names += (names.empty() ? "" : ", ") + each->get_name();
    return names;
  }

  // Refuses a first word that is no command, before what stands behind it is called unexpected.
  void require_command(int argc, char** argv) const {
    if (argc < 2 || argv[1][0] == '-') return;
    const auto commands_there = app.get_subcommands({});
    const auto named = [&](const CLI::App* each) { return each->get_name() == argv[1]; };
    if (std::ranges::none_of(commands_there, named)) fail("{}: no command; one of {}", argv[1], command_names());
  }

  // Before anything is parsed: -ngl would be -n with the value gl, and -fa a file named a.
  void require_no_habits(int argc, char** argv) {
    if (argc < 3) return;
    for (const CLI::App* command : app.get_subcommands({})) {
      if (command->get_name() != argv[1]) continue;
      asked = command->get_name();
      const auto hint = llama_hint({argv + 2, static_cast<std::size_t>(argc - 2)}, *command);
      if (hint) fail("{}", *hint);
    }
  }

  int wrong_usage(const std::string& message) const {
    let_first_rank_speak(message);
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    const std::string name = chosen.empty() ? asked : chosen.front()->get_name();
    const std::string subcommand = name.empty() ? "" : name + " ";
    return report(fmt::format("{} (see hayloft {}--help)", message, subcommand), usage_exit);
  }
};

int run(int argc, char** argv) {
  Program program;
  Command* command = nullptr;
  try {
    command = program.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    std::ostringstream text;
    const int code = program.app.exit(asked, text);
    print(text.str());
    return code;
  } catch (const CLI::ParseError& error) {
    return program.wrong_usage(error.what());
  } catch (const Error& error) {
    return program.wrong_usage(error.what());
  }
  if (!command) {
    try {
      print(program.answer().value_or(""));
    } catch (const Error& error) {
      return program.wrong_usage(error.what());
    }
    return 0;
  }
  command->run();
  offload::check_mapped_files();
  leave_ranks();
  return command->exit_code();
}

// Large pieces go back to the system when they are freed. Left to itself the allocator keeps up to 32 MiB of them, ever
// more as it sees them come and go: a question's tails, once each, and the plan of a run would be off by that. What is
// left of the heap's end stays: given back at once it would be asked for again, page by page, by the next step.
void return_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 4 << 20);
}

// Keeps memory, untouched, and gives it back before a refusal of the system is thrown: what is half made is taken apart
// then, and a tree of JSON takes memory for that again.
void keep_memory_for_unwinding() {
  constexpr std::size_t kKept = std::size_t{8} << 20;
  static std::atomic<void*> kept = std::malloc(kKept);
  std::set_new_handler([] {
    std::free(kept.exchange(nullptr));
    throw std::bad_alloc();
  });
}

// Writing past a limit (ulimit -f) or into a pipe that nobody reads is an error of that write, with a message, and not
// the end of the process.
void ignore_write_signals() {
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

// If the system does not tell what processors there are, as in some containers, hwloc says so on stderr and guesses.
void silence_hwloc() {
  ::setenv("HWLOC_HIDE_ERRORS", "2", 0);
}

}  // namespace

void Command::check_ranks() const {
  fail(
      "this command does not run over ranks, of which mpirun has started {}; needle, generate, chat, ingest, ask, "
      "serve, "
      "eval and link do",
      rank_count());
}

}  // namespace hayloft::cli

int main(int argc, char** argv) {
  using namespace hayloft::cli;
  open_standard_descriptors();
  ignore_write_signals();
  return_freed_memory();
  keep_memory_for_unwinding();
  silence_hwloc();
  catch_interrupts();
  silence_other_ranks();
  hayloft::offload::check_while_waiting(check_interrupted);
  hayloft::offload::survive_truncated_files();
  try {
    hayloft::offload::limit_instruction_set();
    return run(argc, argv);
  } catch (const hayloft::runtime::cluster::SharedError& error) {
    report(error.what(), error_exit);  // before the others may end, which ends this one
    leave_ranks();
    return error_exit;
  } catch (const Interrupted& stopped) {
    if (stopped.of == Interrupted::Of::all_ranks) {
      report(stopped.what(), interrupted_exit);
      leave_ranks();
      return interrupted_exit;
    }
    return report_and_end_ranks(stopped.what(), interrupted_exit);
  } catch (const std::bad_alloc&) {
    return report_and_end_ranks(
        "the system has no memory left for this process; raise its limit (ulimit -v, ulimit -d) or lower the context",
        error_exit);
  } catch (const hayloft::gpu::DeviceLost& error) {
    return report_and_end_ranks(error.what(), lost_exit);
  } catch (const std::exception& error) {
    return report_and_end_ranks(error.what(), error_exit);
  }
}
