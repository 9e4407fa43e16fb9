#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "offload/clock.h"
#include "runtime/context/ingest.h"

namespace hayloft::runtime::serve {

struct SavedPromptOptions {
  std::filesystem::path directory;  // made with the first file; empty: nothing is saved
  std::uint64_t most_bytes = 0;     // of all files; 0: nothing is saved
  std::size_t least_tokens = 2048;  // prompts shorter than this, in whole chunks, are not worth it
  double checkpoint_seconds = 15;   // between checkpoints while a prompt is read; 0: after each chunk
  // The number of its last checkpoints that a file keeps, for prompts that part from it before its end; 0: 4 for a
  // model with recurrent layers, 1 for others.
  int checkpoints = 0;
};

// Long prompts on the disk, as far as they have been read: a server that is started again, even after it was killed,
// goes on from there. One file for each, in the format of saved contexts; a prompt that parts from it goes on from the
// last checkpoint that the file keeps before that. Where they take more than they may, the least recently used go.
// Written on a thread of its own from forks, so that answers do not wait for the disk; the other members are for one
// thread. What cannot be written is not saved, and counted. Another server may use the folder, too: what it has written
// is opened only for prompts that begin so, and goes where it is the least recently used.
class SavedPrompts {
 public:
  // `method`: what sessions decode with, for open(). Methods that keep something of a sequence have to see it being
  // read: nothing is saved for them. The source and the arena must outlive it.
  SavedPrompts(const ModelSource& source, offload::Arena& arena, SessionOptions session, SharedMethod method,
               SavedPromptOptions options);
  ~SavedPrompts();  // writes what was handed over
  SavedPrompts(const SavedPrompts&) = delete;
  SavedPrompts& operator=(const SavedPrompts&) = delete;

  // Returns how many tokens the checkpoint has that holds most of the beginning of `prompt`, fewer than all of it; 0:
  // there is none.
  std::size_t longest(std::span<const std::int32_t> prompt) const;
  // A session that has read up to there. Nothing where it is gone or damaged, and then it is forgotten.
  std::optional<Session> open(std::span<const std::int32_t> prompt);

  struct File;
  using Handle = std::shared_ptr<File>;
  // Returns where a prompt is saved of which a session has `read` tokens already; null where that is not worth it.
  Handle begin(std::span<const std::int32_t> prompt, std::size_t read);
  // The session has read so many of its tokens, whole chunks; `now`: save it whatever the time. Lets go of the handle
  // when there is no more to save.
  void advance(Handle& file, const Session& session, std::span<const std::int32_t> read, bool now);
  void release(Handle& file);  // no more is read
  void flush();                // returns when what was handed over is on the disk

  struct Figures {
    int files = 0;
    std::uint64_t bytes = 0, failures = 0;
  };
  Figures figures() const;

 private:
  struct Task {
    Handle file;
    std::optional<Session> session;  // none: let go of the file
    std::vector<std::int32_t> tokens;
    bool complete = false;
  };
  bool available() const;
  void load();
  // Returns whether sessions go on from a file of that description.
  bool goes_on(const offload::SnapshotDescription& saved) const;
  struct Found {
    Handle file;
    std::size_t tokens = 0;  // of the checkpoint
  };
  Found find(std::span<const std::int32_t> prompt) const;  // the mutex is held
  void hand_over(Task task);
  void run();
  void write(Task& task);
  // Creates the file of a prompt under a name that no other has.
  offload::SnapshotWriter create(File& file);
  void make_room(const File& newest);  // the mutex is held

  const ModelSource source_;
  offload::Arena& arena_;
  const SessionOptions session_;
  const SharedMethod method_;
  const SavedPromptOptions options_;
  offload::SnapshotDescription own_;  // describes a prompt that this server alone has read

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::list<Handle> files_;
  std::deque<Task> tasks_;
  bool writing_ = false;
  bool closed_ = false;
  std::uint64_t uses_ = 0;
  std::uint64_t failures_ = 0;
  int next_name_ = 1;
  std::thread thread_;
};

}  // namespace hayloft::runtime::serve
