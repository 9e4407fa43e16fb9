#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "offload/snapshot/snapshot.h"

namespace hayloft::runtime::serve {

// Throws Error unless `name` can stand for a file NAME.hay of a folder and nothing else: letters, digits, '.', '_' and
// '-', at most 100, beginning with a letter or digit.
void check_context_name(std::string_view name);

struct ContextEntry {
  std::string name;
  std::int64_t tokens = 0;
  std::uint64_t bytes = 0;
  std::string problem;  // why it cannot be asked; empty: it can
};

// Says which file a name stood for, and of when: another program may replace it, or append to it.
struct ContextStamp {
  std::uint64_t device = 0, inode = 0, bytes = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  // when it was written last

  friend bool operator==(const ContextStamp&, const ContextStamp&) = default;
};

// A folder of saved contexts, by name. Thread-safe; the folder may change meanwhile.
class Contexts {
 public:
  explicit Contexts(std::filesystem::path directory) : directory_(std::move(directory)) {}  // empty: none

  bool available() const { return !directory_.empty(); }
  // Throws Error when the name is none, or there is no folder.
  std::filesystem::path path(std::string_view name) const;
  bool contains(std::string_view name) const;
  ContextStamp stamp(std::string_view name) const;  // all zeros where there is none
  // In the order of their names, those of another model with that as their problem.
  std::vector<ContextEntry> list(const offload::ModelIdentity& model) const;
  // With its shards, where it lies in several, and what is kept beside it. False when there was none; throws Error when
  // it cannot, and where a file of this name is no saved context.
  bool remove(std::string_view name) const;
  // Removes what an interrupted reading has left under that name; throws Error where somebody is writing to it.
  void remove_part(std::string_view name) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace hayloft::runtime::serve
