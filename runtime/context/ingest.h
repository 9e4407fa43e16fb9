#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "offload/snapshot/writer.h"
#include "runtime/context/column_choice.h"
#include "runtime/context/reading_note.h"
#include "runtime/decode/session.h"
#include "runtime/tokenizer/tokenizer.h"

// Long texts, read once and saved: CTX.hay. Blocks and tails hold whole chunks of a text only; the ids of the tokens
// behind the last one are saved as they are, and what reading them gave beside (text_end.h). So a context is the same,
// bit for bit, whether it was made in one go, in pieces, or resumed after an interruption. It is always read
// in the way it was begun: by chunks of the same size, attending by the same kind of prefill, which it notes down
// (runtime/context/reading_note.h).
//
// Over several options.session.peers() a context lies in shards (context_file.h), which as many ranks go on with. All
// of them make the same calls with the same text; what goes wrong on one of them before and behind the reading is
// thrown on all. `path` is on this rank's disk or one that they share. They have no indices.
namespace hayloft::runtime {

struct IngestOptions {
  SessionOptions session;
  double checkpoint_seconds =
      5;  // a checkpoint after the first chunk that ends this long after the last; 0: after each
  // Called before anything is read or written, with how the text will be read, how many tokens the context will have,
  // how many of them lie in blocks of the file already, and how many checkpoints it will keep. Throw to refuse.
  std::function<void(const SessionOptions& reading, std::int64_t tokens, std::int64_t stored, int checkpoints)>
      planned = {};
  // Whatever these methods keep of a sequence is built when the text has been read, and saved with the context, each
  // under its Method::state_key(). They see the queries of what is read in this run.
  std::vector<SharedMethod> indices = {};
  StateProgress indexing = {};  // called for each in turn
  bool again = false;           // append_to: also to a context that ends with the text already
  // The number of its last checkpoints that the context keeps, so that update() can go back to them; each takes what
  // the tails and states take. The context notes the number down. 0: as noted, else 4 for a model with recurrent layers
  // and 1 for others.
  int checkpoints = 0;
  // A new context's key columns are chosen by what they find of its first tokens (column_choice.h), in place of
  // session.cache.columns. An interruption before that keeps nothing.
  bool choose_columns = false;
  offload::SnapshotCalls calls = offload::system_calls();  // by which the files are written
};

// Thrown on all ranks, after a checkpoint, when the progress of rank 0 has thrown.
struct StoppedTogether : std::exception {
  explicit StoppedTogether(std::int64_t tokens_read) : tokens(tokens_read) {}
  const char* what() const noexcept override { return "stopped"; }
  std::int64_t tokens;  // that are kept
};

struct IngestResult {
  bool was_there = false;         // the context had the text already, so nothing was written
  std::int64_t tokens = 0;        // in the context
  std::int64_t resumed_from = 0;  // tokens that were read already
  std::int64_t same = 0;          // update: tokens that the context and the text both begin with
  std::int64_t read = 0;          // tokens read into K and V by this run
  double seconds = 0;             // of reading, the choice of columns counted in
  ColumnChoice columns = {};      // where this run has made one
  PrefillRead prefill_read = {};  // of the whole context, where it was read sparsely
  bool counts_all = true;         // false: prefill_read is of this run, and nobody knows what was left out before
  std::uint64_t file_bytes = 0;
};

// Identifies the model at that path, run with those RopeOverrides::text(). Throws Error on what cannot be read.
offload::ModelIdentity identity_of(const std::filesystem::path& model, std::string_view run = {});

// A model, where it lies and what it is: what contexts are checked against.
struct ModelSource {
  const Model& model;
  const Tokenizer& tokenizer;
  std::filesystem::path directory;
  offload::ModelIdentity identity() const;
};

// Returns what is noted of a context that is read so; `checkpoints` as in IngestOptions.
offload::SnapshotDescription describe_context(const ModelSource& source, const SessionOptions& session,
                                              int checkpoints = 0);

// Returns how many checkpoints a context keeps where `wanted` of them are asked for; see IngestOptions::checkpoints.
int kept_checkpoints(const ModelConfig& config, int wanted);

// SnapshotWriter::checkpoint with what the session has read of `tokens`, from their first on.
void save_checkpoint(offload::SnapshotWriter& writer, const Session& session, std::span<const std::int32_t> tokens,
                     std::span<const offload::SnapshotAttachment> attachments = {}, bool complete = false);

// Reads `text` into a new context at `path`. It grows under the name PATH.part; when that is there already, left by an
// interrupted run on the same text, it is continued. Throws Error; and whatever `progress` throws, after a checkpoint.
// `path` itself appears only when it is complete.
IngestResult ingest(const ModelSource& source, offload::Arena& arena, std::string_view text,
                    const std::filesystem::path& path, const IngestOptions& options,
                    const PrefillProgress& progress = {});

// Goes on with an existing context. Interrupted, the context is as before until the same append is run again to its
// end. A complete context whose last tokens are those of the text stays as it is unless options.again: so an append
// whose end nobody saw can be repeated.
IngestResult append_to(const ModelSource& source, offload::Arena& arena, std::string_view text,
                       const std::filesystem::path& path, const IngestOptions& options,
                       const PrefillProgress& progress = {});

// Makes the context that of `text`: reads on from the last of its checkpoints up to which both are the same, or from
// the beginning, into PATH.part, where there is none. Interrupted, the context holds what was read so far, unfinished,
// until an update has come to its end.
IngestResult update(const ModelSource& source, offload::Arena& arena, std::string_view text,
                    const std::filesystem::path& path, const IngestOptions& options,
                    const PrefillProgress& progress = {});

// Builds what options.indices keep for a context that is there already and saves it with it; an index that was saved
// before is taken on from where it ends, a damaged one made anew. False, and nothing is written, where the context has
// all of them as they are. Throws Error; what `indexing` throws leaves the context as it was.
bool add_indices(const ModelSource& source, offload::Arena& arena, const std::filesystem::path& path,
                 const IngestOptions& options);

// Takes what the method keeps from the context, where it was saved with it; else it will be built when it is needed.
// Throws Error naming the file when it is damaged.
bool restore_index(Session& session, const offload::Snapshot& snapshot, const Method& method);

// Returns the note of a saved context for one with the same K and V that cannot say what was left out in figures: where
// those of a part count something, or are damaged, all of it was read sparsely; where nothing was left out, exactly.
// Throws Error naming the file where the note is none.
ReadingNote carried_note(const offload::Snapshot& snapshot);

// Returns what a context that was read sparsely has left out; empty where nothing was read sparsely. Throws Error where
// that is damaged.
PrefillRead saved_prefill_read(const offload::Snapshot& snapshot);

// `options` with what a saved context was read by so far, and so goes on: block size, columns, chunk and prefill.
// Throws Error when the file says nothing that this version knows.
SessionOptions as_read(const offload::Snapshot& snapshot, SessionOptions options);

// A session at the end of a saved context: the mapped blocks, the tails, and the tokens behind the last chunk, as they
// were saved or, for a method that keeps something of the sequence, read now as the context was. What is appended to it
// attends by options.prefill. What `method` keeps, if given, is restored before those tokens are read, or sees their
// queries. Throws Error when the context belongs to another model. Over ranks all of them call it, and all of them
// throw.
Session open_context(const ModelSource& source, offload::Arena& arena, const offload::Snapshot& snapshot,
                     const SessionOptions& options, const Method* method = nullptr);

}  // namespace hayloft::runtime
