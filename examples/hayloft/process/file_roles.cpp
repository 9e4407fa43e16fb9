#include "examples/hayloft/process/file_roles.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "examples/hayloft/process/folder_text.h"
#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/snapshot/shards.h"
#include "runtime/context/hot_file.h"
#include "runtime/machine/profile.h"

namespace hayloft::cli {
namespace {

// The options of all commands that name files. --append and --update name a context that is read and written, but
// nothing else may write to it, and it is no text. A folder of --contexts is served, and nothing else is written.
constexpr std::array<std::string_view, 16> inputs = {
    "model", "context", "file", "haystack", "squad",   "hotpotqa", "triviaqa",     "cnn-dailymail",
    "text",  "jsonl",   "in",   "profile",  "machine", "network",  "api-key-file", "experts-held"};
constexpr std::array<std::string_view, 8> outputs = {"json", "plot",   "out",   "audit-json", "attention-stats",
                                                     "save", "append", "update"};
// To these "-" is standard output.
constexpr std::array<std::string_view, 3> streams = {"json", "audit-json", "attention-stats"};
constexpr std::array<std::string_view, 1> exempt = {"contexts"};
constexpr std::array<std::string_view, 4> context_options = {"context", "save", "append", "update"};

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

Identity identity_of(const struct stat& status) {
  return {S_ISREG(status.st_mode), status.st_dev, status.st_ino, {}};
}

// Returns, for what cannot be there, as behind links that lead in a circle, one that is like no other. Who opens it
// says why.
Identity identity_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return identity_of(status);
  try {
    return {true, 0, 0, offload::resolve_links(path)};
  } catch (const Error&) {
    return {};
  }
}

struct NamedFile {
  std::string option;  // as the user wrote it: "--json out.json"
  Identity identity;
  bool beside = false;  // not the one that was named: one that lies beside it, or in it
};

std::vector<NamedFile>& written() {
  static std::vector<NamedFile> files;
  return files;
}

// Adds what lies beside a saved context and belongs to it: its shards, what it was before it was whole, what was read
// often.
void add_beside(const std::string& option, const std::filesystem::path& context, std::vector<NamedFile>& files) {
  const auto add = [&](const std::filesystem::path& path) { files.push_back({option, identity_of(path), true}); };
  std::filesystem::path part = context;
  part += ".part";
  add(part);
  add(runtime::hot_file_of(context));
  try {
    for (const offload::NamedShard& shard : offload::find_shards(context)) add(shard.file);
  } catch (const Error&) {  // of a name that leads nowhere
  }
}

// The form that a folder is read in.
enum class FolderKind {
  model,     // the files in it
  texts,     // what read_folder() reads of it
  haystack,  // all that is in it and in folders below
};

std::vector<std::filesystem::path> role_paths(const std::filesystem::path& folder, FolderKind kind,
                                              const std::vector<std::string>& include) {
  namespace fs = std::filesystem;
  std::vector<fs::path> paths;
  std::error_code error;
  if (kind == FolderKind::texts) {
    try {
      for (const std::string& path : folder_paths(folder, include)) paths.push_back(folder / path);
    } catch (const Error&) {  // cannot be read, which is said when it is
    }
  } else if (kind == FolderKind::haystack) {
    fs::recursive_directory_iterator at(folder, error);
    for (const fs::recursive_directory_iterator end; !error && at != end; at.increment(error)) paths.push_back(*at);
  } else {
    fs::directory_iterator at(folder, error);
    for (const fs::directory_iterator end; !error && at != end; at.increment(error)) paths.push_back(*at);
  }
  return paths;
}

// A file, or those of a folder.
std::vector<NamedFile> files_of(const std::string& option, const std::filesystem::path& path, FolderKind kind,
                                const std::vector<std::string>& include) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return {{option, identity_of(path)}};
  std::vector<NamedFile> files;
  for (const std::filesystem::path& file : role_paths(path, kind, include)) {
    files.push_back({option, identity_of(file), kind != FolderKind::model});
  }
  return files;
}

void require_other(const NamedFile& output, const NamedFile& other, const char* role) {
  if (!output.identity.same_as(other.identity)) return;
  const char* const how = output.beside ? "a file beside it would be" : "would be";
  fail("{}: {} written over {}, {}; name another file", output.option, how, other.option, role);
}

// Every file that an option may name has a role: one that was forgotten would be written over its input.
void require_role(const CLI::Option& option, const std::string& name) {
  const std::string type = option.get_type_name();
  for (const char* const file : {"FILE", ".hay", ".json", "MODEL", "PATH", "DIR"}) {
    if (type.find(file) == std::string::npos || is_one_of(name, exempt)) continue;
    throw std::logic_error("option " + name + " names a file and has no role in file_roles.cpp");
  }
}

std::string role_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name() : option.get_lnames().front();
}

std::vector<std::string> results_of(const CLI::App& command, const char* name) {
  const CLI::Option* const option = command.get_option_no_throw(name);
  return option ? option->results() : std::vector<std::string>();
}

class Roles {
 public:
  explicit Roles(const CLI::App& command) : command_(command), include_(results_of(command, "--include")) {
    written().clear();
    for (const CLI::Option* option : command.get_options()) add(*option);
    add_kept_profile();
    struct stat status {};
    if (::fstat(STDIN_FILENO, &status) == 0) read_.push_back({"standard input", identity_of(status)});
  }

  void check() const {
    for (std::size_t i = 0; i < written().size(); ++i) {
      const NamedFile& output = written()[i];
      for (const NamedFile& file : read_) {
        // The rest of a context that was interrupted is no text, and so left out of the folder that it is in.
        if (!output.beside || !file.beside) require_other(output, file, "which is read");
      }
      for (std::size_t j = 0; j < i; ++j) require_other(output, written()[j], "which is written as well");
    }
  }

 private:
  void add(const CLI::Option& option) {
    const std::string name = role_name(option);
    const bool writes = is_one_of(name, outputs) || (name == "profile" && command_.get_name() == "link") ||
                        (name == "context" && command_.get_name() == "index");
    if (!writes && !is_one_of(name, inputs)) return require_role(option, name);
    const std::string spelled = option.get_lnames().empty() ? name : "--" + name;
    for (const std::string& path : option.results()) {
      if (path.empty()) fail("{} '': names no file; leave it out or name one", spelled);
      if (path == "-" && writes && !is_one_of(name, streams)) {
        fail("{} -: is written to a file, and not to standard output; name one, as ./- where that is its name",
             spelled);
      }
      if (path == "-") continue;
      add_path(name, spelled + " " + path, path, writes);
    }
  }

  void add_path(const std::string& name, const std::string& both, const std::string& path, bool writes) {
    const bool context = is_one_of(name, context_options);
    if (writes) {
      written().push_back({both, identity_of(path)});
      if (context) add_beside(both, path, written());
      return;
    }
    const FolderKind kind = name == "file"       ? FolderKind::texts
                            : name == "haystack" ? FolderKind::haystack
                                                 : FolderKind::model;
    const std::vector<NamedFile> files = files_of(both, path, kind, include_);
    read_.insert(read_.end(), files.begin(), files.end());
    if (context) add_beside(both, path, read_);
  }

  // The profile that hayloft link keeps, where none is named. It makes one when it measures everything.
  void add_kept_profile() {
    const CLI::Option* const profile = command_.get_option_no_throw("--profile");
    if (profile == nullptr || profile->count() > 0) return;
    const bool link = command_.get_name() == "link";
    for (const char* const other : {"--tests", "--list-tests"}) {
      if (link && command_.get_option(other)->count() > 0) return;
    }
    try {
      const std::filesystem::path kept = runtime::plan::default_profile_path();
      NamedFile file{"the kept profile " + kept.string(), identity_of(kept)};
      (link ? written() : read_).push_back(std::move(file));
    } catch (const Error&) {  // nothing says where that would be
    }
  }

  const CLI::App& command_;
  const std::vector<std::string> include_;
  std::vector<NamedFile> read_;
};

}  // namespace

void check_files(const CLI::App& command) {
  Roles(command).check();
}

void require_not_output(const std::filesystem::path& path) {
  for (const NamedFile& file : files_of(path.string(), path, FolderKind::model, {})) {
    for (const NamedFile& output : written()) require_other(output, file, "which is read");
  }
}

}  // namespace hayloft::cli
