#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temporary_folder.h"

// scripts/gpu-check as on a machine with a GPU, which is the double of this folder.
namespace hayloft::test {

namespace fs = std::filesystem;

inline std::string contents(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary)
              .rdbuf();  // what cannot be read, as of a process that has ended, is empty
  return text.str();
}

// Until `done`, for at most a minute; whether it came.
template <class Done>
bool wait_for(const Done& done) {
  for (int i = 0; i < 6000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

inline std::vector<std::string> lines(const fs::path& path) {
  std::vector<std::string> all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) all.push_back(line);
  return all;
}

// Returns whether a process is there and has not ended.
inline bool alive(const std::string& pid) {
  std::string stat = contents("/proc/" + pid + "/stat");  // "7 (name) S ..."
  const std::size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.substr(name_end + 2, 1) != "Z";
}

// A command of bash. Ended with this object, unless it has ended by itself.
class Running {
 public:
  explicit Running(const std::string& command) {
    const char* const argv[] = {"/bin/bash", "-c", command.c_str(), nullptr};
    if (posix_spawn(&pid_, argv[0], nullptr, nullptr, const_cast<char* const*>(argv), environ) != 0) pid_ = -1;
  }
  ~Running() {
    if (pid_ <= 0) return;
    signal(SIGKILL);
    wait();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  int wait() {  // the exit code, -1 after a signal
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

// A build tree with suites and a program of its own.
class GpuCheckScript : public ::testing::Test {
 protected:
  void script(const std::string& path, const std::string& text) const {
    const fs::path file = folder_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << text << '\n';
    fs::permissions(file, fs::perms::owner_all);
  }
  std::string summary() const { return contents(folder_ / "out/summary.md"); }
  nlohmann::json report() const { return nlohmann::json::parse(contents(folder_ / "out/gpu-check.json")); }
  // settings: what bash does before it turns into the script.
  std::string command(const std::string& steps, const std::string& settings) const {
    return settings + " HAYLOFT_BUILD=" + (folder_ / "tree").string() +
           " exec bash " HAYLOFT_SOURCE_DIR "/scripts/gpu-check " + (folder_ / "out").string() + " " + steps + " 2>" +
           (folder_ / "err").string();
  }
  int run(const std::string& steps, const std::string& settings) const {
    return Running(command(steps, settings)).wait();
  }
  std::string verdict(const std::string& what) const {
    const nlohmann::json found = report();
    for (const nlohmann::json& line : found["shows"]) {
      if (line["what"].get<std::string>().find(what) != std::string::npos) return line["verdict"];
    }
    return "no such line";
  }
  // The program, but with this to say of the machine; what it is called with is kept.
  void program_that_lists(const std::string& devices) const {
    script("tree/bin/hayloft", "case \"$1\" in --list-devices) echo '" + devices +
                                   "'; exit;; bench | needle | link) echo \"$*\" >>" + (folder_ / "calls").string() +
                                   "; exit;; esac\nexec " HAYLOFT_PROGRAM " \"$@\"");
  }
  // Programs in folder_/bin come before the system's.
  std::string own_path() const { return "PATH=" + (folder_ / "bin").string() + ":$PATH "; }

  TemporaryFolder folder_;
};

}  // namespace hayloft::test
