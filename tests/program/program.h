#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

// The program as a user runs it: arguments in, exit code and two streams out.
namespace hayloft::test {

struct Outcome {
  int exit_code = -1;  // -1: it was ended by a signal
  int signal = 0;      // that one
  std::string out;
  std::string err;
  std::uint64_t peak_bytes = 0;  // of resident memory
};

// Another program that starts it, with that program's arguments: mpirun.
struct Command {
  std::string program;
  std::vector<std::string> arguments;
};

class Program {
 public:
  explicit Program(Command command, const std::string& input = "/dev/null") {
    start(command.program, std::move(command.arguments), input);
  }

  // Starts it; its streams go to files of its own. `shell`: what a shell does before it turns into the program, as in
  // "ulimit -v 100000". `input`: the file that is its standard input.
  explicit Program(std::vector<std::string> arguments, const std::string& shell = "",
                   const std::string& input = "/dev/null") {
    if (shell.empty()) {
      start(HAYLOFT_PROGRAM, std::move(arguments), input);
      return;
    }
    arguments.insert(arguments.begin(), {"-c", shell + R"( && exec "$0" "$@")", HAYLOFT_PROGRAM});
    start("/bin/sh", std::move(arguments), input);
  }
  ~Program() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Outcome wait() {
    int status = 0;
    rusage used{};
    ::wait4(pid_, &status, 0, &used);
    pid_ = -1;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0, contents(out()),
            contents(err()), static_cast<std::uint64_t>(used.ru_maxrss) * 1024};
  }

  std::string output() const { return contents(out()); }  // so far
  std::string error_output() const { return contents(err()); }

  pid_t id() const { return pid_; }
  void interrupt() const { ::kill(pid_, SIGINT); }

  // Returns once it waits in poll(2), or has ended.
  void wait_until_asleep_in_poll() const {
    while (running()) {
      std::ifstream call("/proc/" + std::to_string(pid_) + "/syscall");
      int number = -1;
      if (call >> number && (number == SYS_poll || number == SYS_ppoll)) return;
      ::sched_yield();
    }
  }

  bool running() const {
    siginfo_t ended{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
  }

  // Returns once it has printed `text`, or has ended.
  void wait_until_printed(const std::string& text) const {
    while (running() && output().find(text) == std::string::npos) ::sched_yield();
  }

  // The processes that it has started, oldest first.
  std::vector<pid_t> children() const {
    std::vector<pid_t> started;
    std::error_code ended;  // a thread, meanwhile
    for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid_) + "/task", ended)) {
      std::ifstream list(task.path() / "children");
      for (pid_t child = 0; list >> child;) started.push_back(child);
    }
    std::sort(started.begin(), started.end());
    return started;
  }

  // Ends it wherever it is, unless it has ended by itself: Outcome::signal says which.
  Outcome kill() {
    ::kill(pid_, SIGKILL);
    return wait();
  }

 private:
  void start(const std::string& program, std::vector<std::string> arguments, const std::string& input) {
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, input.c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }

  std::string out() const { return folder_ / "stdout"; }
  std::string err() const { return folder_ / "stderr"; }
  static std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
};

inline Outcome run_program(std::vector<std::string> arguments, const std::string& shell = "") {
  return Program(std::move(arguments), shell).wait();
}

// Succeeds when the program printed nothing but one line on standard error that holds every one of `parts`, and ended
// with this code.
inline ::testing::AssertionResult refused_with(const Outcome& outcome, int exit_code,
                                               const std::vector<std::string>& parts) {
  if (outcome.exit_code != exit_code) {
    return ::testing::AssertionFailure() << "exit code " << outcome.exit_code << ", not " << exit_code << ": "
                                         << outcome.err;
  }
  if (!outcome.out.empty()) return ::testing::AssertionFailure() << "on standard output: " << outcome.out;
  if (outcome.err.rfind("hayloft: ", 0) != 0 || outcome.err.find('\n') + 1 != outcome.err.size()) {
    return ::testing::AssertionFailure() << "not one line of hayloft: " << outcome.err;
  }
  for (const std::string& part : parts) {
    if (outcome.err.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << outcome.err;
    }
  }
  return ::testing::AssertionSuccess() << outcome.err;
}

}  // namespace hayloft::test
