#include "examples/hayloft/process/file_roles.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "offload/error.h"
#include "offload/output_file.h"

namespace hayloft::cli {
namespace {

// The options of all commands that name files. --append names a context that is read and written, but nothing else may
// write to it.
constexpr std::array<std::string_view, 14> inputs = {"model",    "context",  "file",          "haystack", "squad",
                                                     "hotpotqa", "triviaqa", "cnn-dailymail", "text",     "jsonl",
                                                     "in",       "profile",  "machine",       "network"};
constexpr std::array<std::string_view, 7> outputs = {"json", "plot",  "out", "audit-json", "attention-stats",
                                                     "save", "append"};

bool is_one_of(std::string_view name, const auto& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A file as it is told from others: by device and inode where it is there, else by where it will be.
struct Identity {
  bool regular = false;  // terminals and pipes may be written to by several
  dev_t device = 0;
  ino_t inode = 0;
  std::filesystem::path path;  // of one that is not there yet

  bool same_as(const Identity& other) const {
    if (!regular || !other.regular) return false;
    if (!path.empty() || !other.path.empty()) return path == other.path;
    return device == other.device && inode == other.inode;
  }
};

Identity identity_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    return {S_ISREG(status.st_mode), status.st_dev, status.st_ino, {}};
  }
  return {true, 0, 0, offload::resolve_links(path)};
}

struct NamedFile {
  std::string option;  // as the user wrote it: "--json out.json"
  Identity identity;
};

std::vector<NamedFile>& written() {
  static std::vector<NamedFile> files;
  return files;
}

// A file, or the files of a folder.
std::vector<NamedFile> files_of(const std::string& option, const std::filesystem::path& path) {
  std::vector<NamedFile> files;
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {{option, identity_of(path)}};
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (at->is_regular_file(error)) files.push_back({option, identity_of(at->path())});
  }
  return files;
}

void require_other(const NamedFile& output, const NamedFile& other, const char* role) {
  if (!output.identity.same_as(other.identity)) return;
  fail("{}: would be written over {}, {}; name another file", output.option, other.option, role);
}

}  // namespace

void check_files(const CLI::App& command) {
  std::vector<NamedFile> read;
  written().clear();
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_lnames().empty() ? option->get_name() : option->get_lnames().front();
    const bool writes = is_one_of(name, outputs) || (name == "profile" && command.get_name() == "link");
    const bool reads = !writes && is_one_of(name, inputs);
    if (!writes && !reads) continue;
    const std::string spelled = option->get_lnames().empty() ? name : "--" + name;
    for (const std::string& path : option->results()) {
      if (path.empty()) fail("{} '': names no file; leave it out or name one", spelled);
      if (path == "-") continue;
      const std::string both = spelled + " " + path;
      if (writes) {
        written().push_back({both, identity_of(path)});
      } else {
        const std::vector<NamedFile> files = files_of(both, path);
        read.insert(read.end(), files.begin(), files.end());
      }
    }
  }
  for (std::size_t i = 0; i < written().size(); ++i) {
    for (const NamedFile& file : read) require_other(written()[i], file, "which is read");
    for (std::size_t j = 0; j < i; ++j) require_other(written()[i], written()[j], "which is written as well");
  }
}

void require_not_output(const std::filesystem::path& path) {
  for (const NamedFile& file : files_of(path.string(), path)) {
    for (const NamedFile& output : written()) require_other(output, file, "which is read");
  }
}

}  // namespace hayloft::cli
