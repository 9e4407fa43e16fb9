#pragma once

#include <CLI/CLI.hpp>
#include <memory>

namespace hayloft::cli {

// A subcommand: it puts its options on its CLI::App when made, and is asked to do its work once they are parsed.
class Command {
 public:
  virtual ~Command() = default;

  // Looks at everything typed as a whole. What it throws is wrong usage: exit code 2.
  virtual void check() = 0;
  // After check(), where mpirun has started several ranks: throws Error, likewise wrong usage, unless they can do
  // together what is asked for.
  virtual void check_ranks() const;
  // Throws Error (exit code 1) or Interrupted.
  virtual void run() = 0;
  // Returns the exit code of the process, once run() has returned: what it found may be no error and yet not what was
  // hoped for.
  virtual int exit_code() const { return 0; }
};

std::unique_ptr<Command> make_needle_command(CLI::App& app);
std::unique_ptr<Command> make_eval_command(CLI::App& app);
std::unique_ptr<Command> make_attend_command(CLI::App& app);
std::unique_ptr<Command> make_generate_command(CLI::App& app);
std::unique_ptr<Command> make_chat_command(CLI::App& app);
std::unique_ptr<Command> make_ingest_command(CLI::App& app);
std::unique_ptr<Command> make_index_command(CLI::App& app);
std::unique_ptr<Command> make_ask_command(CLI::App& app);
std::unique_ptr<Command> make_serve_command(CLI::App& app);
std::unique_ptr<Command> make_import_command(CLI::App& app);
std::unique_ptr<Command> make_export_command(CLI::App& app);
std::unique_ptr<Command> make_inspect_command(CLI::App& app);
std::unique_ptr<Command> make_plan_command(CLI::App& app);
std::unique_ptr<Command> make_link_command(CLI::App& app);
std::unique_ptr<Command> make_bench_command(CLI::App& app);

}  // namespace hayloft::cli
