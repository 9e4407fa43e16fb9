#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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

class Program {
 public:
  // Starts it; its streams go to files of its own. `shell`: what a shell does before it turns into the program, as in
  // "ulimit -v 100000". `input`: the file that is its standard input.
  explicit Program(std::vector<std::string> arguments, const std::string& shell = "",
                   const std::string& input = "/dev/null") {
    arguments.insert(arguments.begin(), HAYLOFT_PROGRAM);
    if (!shell.empty()) arguments.insert(arguments.begin(), {"/bin/sh", "-c", shell + R"( && exec "$0" "$@")"});
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

  void interrupt() const { ::kill(pid_, SIGINT); }

  bool running() const {
    siginfo_t ended{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
  }

  // Ends it wherever it is, unless it has ended by itself: Outcome::signal says which.
  Outcome kill() {
    ::kill(pid_, SIGKILL);
    return wait();
  }

 private:
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
