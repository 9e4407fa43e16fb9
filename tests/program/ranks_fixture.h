#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/program/program_fixture.h"

// `mpirun hayloft` from outside, for files whose name holds ranks_e2e.
namespace hayloft::test {

class RanksTest : public ProgramTest {
 protected:
  void SetUp() override {
    if (std::string(HAYLOFT_MPIRUN).empty()) GTEST_SKIP() << "built without MPI";
    if (::access(HAYLOFT_MPIRUN, X_OK) != 0) GTEST_SKIP() << "there is no " << HAYLOFT_MPIRUN;
    // mpirun refuses to run for root, which tests in containers are, and waits for its own ranks only when idle.
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    ::setenv("TMPDIR", "/tmp", 0);
  }

  static std::vector<std::string> launched(int ranks, std::vector<std::string> arguments) {
    std::vector<std::string> all{"-n", std::to_string(ranks), "--oversubscribe", HAYLOFT_PROGRAM};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  // Each rank with a command line of its own.
  static Outcome apart(const std::vector<std::vector<std::string>>& ranks) {
    std::vector<std::string> all;
    for (const std::vector<std::string>& arguments : ranks) {
      if (!all.empty()) all.push_back(":");
      all.insert(all.end(), {"-n", "1", "--oversubscribe"});
      all.insert(all.end(), arguments.begin(), arguments.end());
    }
    return Program(Command{HAYLOFT_MPIRUN, all}).wait();
  }
  // `input`: the file that is standard input of mpirun, which gives it to the first.
  static Outcome over(int ranks, std::vector<std::string> arguments, const std::string& input = "/dev/null") {
    return Program(Command{HAYLOFT_MPIRUN, launched(ranks, std::move(arguments))}, input).wait();
  }

  // The lines of standard error that hayloft has written, without mpirun's about how it ended.
  static std::vector<std::string> own_lines(const Outcome& outcome) {
    std::vector<std::string> lines;
    std::istringstream text(outcome.err);
    for (std::string line; std::getline(text, line);) {
      if (line.rfind("hayloft: ", 0) == 0) lines.push_back(line);
    }
    return lines;
  }
  // A process that nobody has asked for yet how it ended is gone too.
  static void wait_until_gone(pid_t process) {
    for (std::string state = "R"; state != "Z" && state != "X";) {
      std::ifstream stat("/proc/" + std::to_string(process) + "/stat");
      std::string id, name;
      if (!(stat >> id >> name >> state)) return;
      ::sched_yield();
    }
  }
  // Open MPI 4.1's mpirun now and then follows a null pointer itself while it cleans up behind ranks that have ended
  // the run. What they said stands; the exit status does not reach anybody.
  static bool mpirun_crashed(const Outcome& outcome) {
    return outcome.exit_code == -1 && outcome.err.find("PMIx_server_finalize") != std::string::npos;
  }
  static void expect_refused(const Outcome& outcome, int exit_code, const std::vector<std::string>& parts) {
    EXPECT_TRUE(outcome.exit_code == exit_code || mpirun_crashed(outcome)) << outcome.exit_code << "\n" << outcome.err;
    EXPECT_EQ(outcome.out, "");
    const std::vector<std::string> lines = own_lines(outcome);
    ASSERT_EQ(lines.size(), 1u) << outcome.err;
    for (const std::string& part : parts) EXPECT_NE(lines.front().find(part), std::string::npos) << lines.front();
  }
};

}  // namespace hayloft::test
