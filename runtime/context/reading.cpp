#include "runtime/context/reading.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "offload/clock.h"
#include "offload/error.h"
#include "runtime/context/earlier_reads.h"
#include "runtime/context/reading_note.h"
#include "runtime/context/text_end.h"
#include "runtime/context/whole_file.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime {
namespace {

// Indices that the context has already go on from there; the others see the queries of what is read.
void begin_indices(Session& session, const offload::Snapshot* snapshot, const IngestOptions& options) {
  for (const auto& method : options.indices) {
    if (!snapshot || !restore_index(session, *snapshot, *method)) session.attach_method(*method);
  }
}

// The inputs of one reading.
struct Run {
  const std::vector<std::int32_t>& tokens;
  const IngestOptions& options;
  const PrefillProgress& progress;
  std::filesystem::path path;
  EarlierReads earlier;
  bool counts_all = true;  // false: nobody knows what was left out of the context before this reading

  cluster::Communicator& ranks() const { return options.session.peers(); }
};

// Returns what a checkpoint where the session is now says; also where a sparse reading has met no layer that it could
// leave out of.
std::vector<offload::SnapshotAttachment> attached_prefill_read(const Session& session, Run& run) {
  const bool sparse = session.prefill_options().kind == PrefillOptions::Kind::sparse;
  if (!run.counts_all || (!sparse && session.prefill_read().empty())) return {};
  std::vector<offload::SnapshotAttachment> attached{
      {std::string(prefill_read_name), save_prefill_read(session.prefill_read())}};
  run.earlier.add(session.tokens(), session.prefill_read());
  if (!run.earlier.empty()) attached.push_back(run.earlier.attachment());
  return attached;
}

// Finishes the file, which is PATH.part or, when a context is gone on with, has its name already.
void finish(ContextFile file, Session& session, Run& run, IngestResult& result) {
  const IngestOptions& options = run.options;
  const auto rest = std::span(run.tokens).subspan(static_cast<std::size_t>(session.tokens()));
  const Clock::time_point start = Clock::now();
  ReadEnd end = read_text_end(session, rest, /*growing=*/!file.anew());
  std::vector<offload::SnapshotAttachment>& beside = end.attachments;
  result.seconds += seconds_since(start);
  if (!beside.empty()) result.read += static_cast<std::int64_t>(rest.size());
  result.prefill_read = std::move(end.prefill_read);
  result.counts_all = run.counts_all;
  if (!run.counts_all) std::erase_if(beside, [](const auto& each) { return each.name == whole_prefill_read_name; });
  for (offload::SnapshotAttachment& loss : attached_prefill_read(session, run)) beside.push_back(std::move(loss));
  if (file.may_be_rewritten() && worth_compacting(file.writer(), session, run.tokens)) {
    const offload::Snapshot grown = file.snapshot();
    for (offload::SnapshotAttachment& index : build_indices(session, options)) beside.push_back(std::move(index));
    if (const auto recall = grown.attachment(column_recall_name)) {
      beside.push_back({std::string(column_recall_name), {recall->begin(), recall->end()}});
    }
    result.file_bytes = write_whole(run.path, grown.description(), session, run.tokens, beside);
    std::filesystem::remove(grown.path());
    return;
  }
  file.checkpoint(session, run.tokens, beside, options.indices.empty());
  if (!options.indices.empty()) file.checkpoint(session, run.tokens, build_indices(session, options), true);
  result.file_bytes = file.bytes();
  file.finish();
}

// Says what follows a chunk. Of ranks the first decides for all, by its clock and by what its progress throws.
struct Turn {
  std::uint8_t save = 0;
  std::uint8_t stop = 0;
};

// Tells how far the reading is, writes a checkpoint when it is due, and throws what the progress has thrown, behind a
// checkpoint.
class Turns {
 public:
  Turns(Run& run, ContextFile& file, const Session& session)
      : run_(run), file_(file), session_(session), saved_(Clock::now()) {}

  void begin() { take(/*due=*/false); }
  void after_chunk() { take(seconds_since(saved_) >= run_.options.checkpoint_seconds); }

 private:
  void take(bool due) {
    Turn turn{.save = due};
    std::exception_ptr why;
    if (run_.ranks().first()) {
      try {
        show();
      } catch (...) {
        why = std::current_exception();
        turn.stop = 1;
      }
    } else {
      show();  // what it throws ends the others
    }
    turn = cluster::told(run_.ranks(), turn, cluster::Traffic::turn);
    const std::int64_t read = session_.tokens();
    if (turn.save != 0 || (turn.stop != 0 && file_.writer().token_count() < read)) {
      file_.checkpoint(session_, std::span(run_.tokens).first(static_cast<std::size_t>(read)),
                       attached_prefill_read(session_, run_));
      saved_ = Clock::now();
    }
    if (turn.stop == 0) return;
    if (run_.ranks().several()) throw StoppedTogether(read);
    std::rethrow_exception(why);
  }
  void show() const {
    if (run_.progress) run_.progress(session_.tokens(), static_cast<std::int64_t>(run_.tokens.size()));
  }

  Run& run_;
  ContextFile& file_;
  const Session& session_;
  Clock::time_point saved_;
};

// Reads what the tokens have beyond the session, chunk by chunk, with checkpoints; then finishes the file.
IngestResult read_on(ContextFile file, Session session, Run& run, int chunk) {
  IngestResult result;
  result.tokens = static_cast<std::int64_t>(run.tokens.size());
  result.resumed_from = session.tokens();
  const std::int64_t whole = result.tokens / chunk * chunk;
  const Clock::time_point start = Clock::now();
  Turns turns(run, file, session);
  turns.begin();
  while (session.tokens() < whole) {
    // A context that was not read here may end within a chunk.
    const std::int64_t next = chunk - session.tokens() % chunk;
    session.append(
        std::span(run.tokens).subspan(static_cast<std::size_t>(session.tokens()), static_cast<std::size_t>(next)), {},
        /*more_follows=*/session.tokens() + next < whole);
    turns.after_chunk();
  }
  result.seconds = seconds_since(start);
  result.read = session.tokens() - result.resumed_from;
  finish(std::move(file), session, run, result);
  return result;
}

// Tokens in the blocks of the context, of ranks up to the end of the last that this one has.
std::int64_t stored_tokens(const offload::Snapshot& snapshot) {
  const offload::SnapshotDescription& of = snapshot.description();
  const std::int64_t own = of.shape.layers == 0 ? 0 : snapshot.stored_tokens(0);
  return own == 0 ? 0 : of.shard.whole(own - of.shape.block_tokens, of.shape.block_tokens) + of.shape.block_tokens;
}

void announce(const ModelSource& source, const IngestOptions& options, const std::vector<std::int32_t>& tokens,
              const offload::Snapshot* snapshot) {
  if (!options.planned) return;
  options.planned(snapshot ? as_read(*snapshot, options.session) : options.session,
                  static_cast<std::int64_t>(tokens.size()), snapshot ? stored_tokens(*snapshot) : 0,
                  kept_checkpoints(source.model.config(), wanted_checkpoints(options, snapshot)));
}

// Throws Error where the disk has no room for what the context takes at least, besides what of it is there already:
// before hours of reading.
void require_disk(const ModelSource& source, const IngestOptions& options, const std::vector<std::int32_t>& tokens,
                  const offload::Snapshot* snapshot, const std::filesystem::path& path) {
  const ModelConfig& config = source.model.config();
  const auto count = static_cast<std::int64_t>(tokens.size());
  const SessionOptions reading = snapshot ? as_read(*snapshot, options.session) : options.session;
  const auto least = [&](offload::ColumnFormat columns, std::int64_t of) {
    CacheOptions cache = reading.cache;
    cache.columns = columns;
    return least_saved_bytes(config, cache, of, reading.chunk_tokens);
  };
  std::uint64_t bytes = least(reading.cache.columns, count);
  if (snapshot) {
    bytes -= std::min(bytes, snapshot->file_bytes());
  } else if (options.choose_columns) {  // of those that may yet be chosen the smallest
    for (const offload::ColumnTraits& format : offload::column_traits) {
      bytes = std::min(bytes, least(format.format, count));
    }
  }
  offload::require_free(path, bytes, options.calls);
}

}  // namespace

std::vector<offload::SnapshotAttachment> build_indices(Session& session, const IngestOptions& options) {
  std::vector<offload::SnapshotAttachment> built;
  for (const auto& method : options.indices) {
    session.prepare(*method, options.indexing);
    const MethodState* const state = session.state(*method);
    std::vector<std::byte> bytes = state ? state->save() : std::vector<std::byte>();
    if (bytes.empty()) fail("--index {}: this method keeps nothing that could be saved", method->options().name);
    built.push_back({method->state_key(), std::move(bytes)});
  }
  return built;
}

int wanted_checkpoints(const IngestOptions& options, const offload::Snapshot* snapshot) {
  if (options.checkpoints > 0 || !snapshot) return options.checkpoints;
  return read_note(snapshot->description().note, snapshot->path().string()).checkpoints;
}

void keep_checkpoints(offload::SnapshotWriter& writer, const ModelSource& source, const offload::Snapshot& snapshot,
                      const IngestOptions& options) {
  ReadingNote note = read_note(snapshot.description().note, snapshot.path().string());
  const int wanted = wanted_checkpoints(options, &snapshot);
  const gpu::Products products = source.model.backend().products();
  note.checkpoints = wanted;
  if (products != gpu::Products::exact) note.products = products;
  note.approximate.cut(snapshot.cached_tokens());
  if (std::string text = write_note(note); text != snapshot.description().note) writer.set_note(std::move(text));
  writer.keep(kept_checkpoints(source.model.config(), wanted));
}

IngestResult begin_reading(const ModelSource& source, offload::Arena& arena, const ContextFile::Place& place,
                           const std::vector<std::int32_t>& tokens, const IngestOptions& options,
                           const PrefillProgress& progress) {
  cluster::together(*place.ranks, [&] {
    announce(source, options, tokens, nullptr);
    require_disk(source, options, tokens, nullptr, place.path);
  });
  SessionOptions reading = options.session;
  ColumnChoice choice;
  const Clock::time_point start = Clock::now();
  // What indices keep depends on the queries of all tokens and on the store: they leave the columns as they are.
  Session session = options.choose_columns && options.indices.empty()
                        ? read_choosing(source.model, arena, reading, tokens, progress, choice)
                        : Session(source.model, arena, reading);
  const double seconds = seconds_since(start);
  begin_indices(session, nullptr, options);
  const std::int64_t chosen_by = session.tokens();
  const auto read_into = [&](ContextFile file) {
    const int kept = kept_checkpoints(source.model.config(), options.checkpoints);
    file.writer().keep(kept);
    Run run{tokens, options, progress, place.path, EarlierReads(kept)};
    if (choice.recall) {
      std::vector<offload::SnapshotAttachment> beside = attached_prefill_read(session, run);
      beside.push_back({std::string(column_recall_name), save_column_recall(*choice.recall)});
      file.checkpoint(session, std::span(tokens).first(static_cast<std::size_t>(chosen_by)), beside);
    }
    return read_on(std::move(file), std::move(session), run, options.session.chunk_tokens);
  };
  ContextFile file = ContextFile::create(place, describe_context(source, reading, options.checkpoints));
  IngestResult result;
  try {
    result = read_into(std::move(file));
  } catch (const Error&) {
    ContextFile::drop_empty_part(place);
    throw;
  }
  if (!choice.recall) return result;
  result.resumed_from -= chosen_by;
  result.read += chosen_by;
  result.seconds += seconds;
  result.columns = std::move(choice);
  return result;
}

IngestResult go_on_reading(const ModelSource& source, offload::Arena& arena, ContextFile file,
                           const offload::Snapshot& snapshot, const offload::Snapshot* back_from,
                           const std::vector<std::int32_t>& tokens, const IngestOptions& options,
                           const PrefillProgress& progress) {
  const offload::Snapshot& whole = back_from ? *back_from : snapshot;
  Run run{tokens, options, progress, file.path(), EarlierReads(1)};
  SessionOptions reading;
  cluster::together(options.session.peers(), [&] {
    announce(source, options, tokens, &snapshot);
    require_disk(source, options, tokens, &snapshot, file.path());
    keep_checkpoints(file.writer(), source, snapshot, options);
    reading = as_read(snapshot, options.session);
    run.earlier = EarlierReads(whole, kept_checkpoints(source.model.config(), wanted_checkpoints(options, &snapshot)));
  });
  Session session(source.model, arena, reading, snapshot);
  std::optional<PrefillRead> read = prefill_read_at(whole, snapshot);
  run.counts_all = read.has_value();
  if (read) session.set_prefill_read(std::move(*read));
  begin_indices(session, &snapshot, options);
  if (back_from && run.ranks().several()) {
    // No shard is complete with the old text any more once one may be complete with the new one: nobody can open some
    // of each.
    const std::int64_t known = std::max(session.tokens(), file.writer().token_count());
    file.checkpoint(session, std::span(tokens).first(static_cast<std::size_t>(known)),
                    attached_prefill_read(session, run));
  }
  return read_on(std::move(file), std::move(session), run, reading.chunk_tokens);
}

}  // namespace hayloft::runtime
