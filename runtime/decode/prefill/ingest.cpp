#include "runtime/decode/prefill/ingest.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "offload/clock.h"
#include "offload/error.h"
#include "runtime/checkpoint/fingerprint.h"
#include "runtime/cluster/agreement.h"
#include "runtime/decode/hot_context.h"
#include "runtime/decode/prefill/reading_note.h"
#include "runtime/decode/prefill/text_end.h"

namespace hayloft::runtime {
namespace {

// A method whose state is worth saving; throws Error naming those that keep none.
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

// Those that the context has already go on from there; the others see the queries of what is read.
void begin_indices(Session& session, const offload::Snapshot* snapshot, const IngestOptions& options) {
  for (const auto& method : options.indices) {
    if (!snapshot || !restore_index(session, *snapshot, *method)) session.attach_method(*method);
  }
}

// Checkpoints leave areas of tails behind, which are most of the file of a short text. Whether writing the context once
// more, whole, instead of its last checkpoint saves more than a third; no checkpoint before the last is to be kept
// then.
bool worth_compacting(const offload::SnapshotWriter& part, const Session& session,
                      std::span<const std::int32_t> tokens) {
  const offload::Snapshot written = part.snapshot();
  const int noted = read_note(written.description().note, written.path().string()).checkpoints;
  if (kept_checkpoints(session.config(), noted) > 1 || part.token_count() == 0) return false;
  constexpr std::uint64_t little = 1 << 16;
  std::uint64_t tails = 0;
  for (const offload::SnapshotTail& tail : session.cache().tails()) tails += tail.rows.size() * sizeof(f16);
  const std::uint64_t whole = session.cache().host_bytes() + tokens.size_bytes() + tails;
  return part.file_bytes() + tails > whole * 3 / 2 + little;
}

// Finishes the file, which is PATH.part or, when a context is gone on with, has its name already.
void finish(offload::SnapshotWriter writer, Session& session, const std::vector<std::int32_t>& tokens,
            const std::filesystem::path& path, bool anew, const IngestOptions& options, IngestResult& result) {
  const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(session.tokens()));
  const Clock::time_point start = Clock::now();
  std::vector<offload::SnapshotAttachment> beside = read_text_end(session, rest, /*growing=*/!anew);
  result.seconds += seconds_since(start);
  if (!beside.empty()) result.read += static_cast<std::int64_t>(rest.size());
  if (anew && worth_compacting(writer, session, tokens)) {
    const offload::SnapshotDescription description = writer.snapshot().description();
    std::filesystem::path part = path, compact = path;
    part += ".part";
    compact += ".saving";
    for (offload::SnapshotAttachment& index : build_indices(session, options)) beside.push_back(std::move(index));
    auto whole = offload::SnapshotWriter::create(compact, description, true);
    save_checkpoint(whole, session, tokens, beside, true);
    result.file_bytes = whole.file_bytes();
    whole.finish(path);
    std::filesystem::remove(part);
    return;
  }
  save_checkpoint(writer, session, tokens, beside, options.indices.empty());
  if (!options.indices.empty()) save_checkpoint(writer, session, tokens, build_indices(session, options), true);
  result.file_bytes = writer.file_bytes();
  writer.finish(path);
}

// Reads what `tokens` have beyond the session, chunk by chunk, with checkpoints; then finishes the file.
IngestResult read_on(offload::SnapshotWriter writer, Session session, const std::vector<std::int32_t>& tokens,
                     const std::filesystem::path& path, bool anew, int chunk, const IngestOptions& options,
                     const PrefillProgress& progress) {
  IngestResult result;
  result.tokens = static_cast<std::int64_t>(tokens.size());
  result.resumed_from = session.tokens();
  const std::int64_t whole = result.tokens / chunk * chunk;
  const Clock::time_point start = Clock::now();
  Clock::time_point saved = start;
  if (progress) progress(session.tokens(), result.tokens);
  while (session.tokens() < whole) {
    // A context that was not read here may end within a chunk.
    const std::int64_t next = chunk - session.tokens() % chunk;
    session.append(
        std::span(tokens).subspan(static_cast<std::size_t>(session.tokens()), static_cast<std::size_t>(next)), {},
        true);
    const auto done = std::span(tokens).first(static_cast<std::size_t>(session.tokens()));
    if (seconds_since(saved) >= options.checkpoint_seconds) {
      save_checkpoint(writer, session, done);
      saved = Clock::now();
    }
    try {
      if (progress) progress(session.tokens(), result.tokens);
    } catch (...) {
      if (writer.token_count() < session.tokens()) save_checkpoint(writer, session, done);
      throw;
    }
  }
  result.seconds = seconds_since(start);
  result.read = session.tokens() - result.resumed_from;
  finish(std::move(writer), session, tokens, path, anew, options, result);
  return result;
}

// Of a context that may be there already. Takes over what it has noted.
int wanted_checkpoints(const IngestOptions& options, const offload::Snapshot* snapshot) {
  if (options.checkpoints > 0 || !snapshot) return options.checkpoints;
  return read_note(snapshot->description().note, snapshot->path().string()).checkpoints;
}

void announce(const ModelSource& source, const IngestOptions& options, const std::vector<std::int32_t>& tokens,
              const offload::Snapshot* snapshot) {
  if (!options.planned) return;
  const bool stored = snapshot && snapshot->description().shape.layers > 0;
  options.planned(snapshot ? as_read(*snapshot, options.session) : options.session,
                  static_cast<std::int64_t>(tokens.size()), stored ? snapshot->stored_tokens(0) : 0,
                  kept_checkpoints(source.model.config(), wanted_checkpoints(options, snapshot)));
}

// The file keeps as many checkpoints as are asked for or noted, and notes what is asked for.
void keep_checkpoints(offload::SnapshotWriter& writer, const ModelSource& source, const offload::Snapshot& snapshot,
                      const IngestOptions& options) {
  ReadingNote note = read_note(snapshot.description().note, snapshot.path().string());
  const int wanted = wanted_checkpoints(options, &snapshot);
  if (note.checkpoints != wanted) {
    note.checkpoints = wanted;
    writer.set_note(write_note(note));
  }
  writer.keep(kept_checkpoints(source.model.config(), wanted));
}

void require_same_beginning(const std::vector<std::int32_t>& saved, const std::vector<std::int32_t>& tokens,
                            const std::string& file) {
  const auto [at, other] = std::mismatch(saved.begin(), saved.end(), tokens.begin(), tokens.end());
  if (at == saved.end()) return;
  fail("{}: holds another text, different from token {} on, of an interrupted run; finish that one or remove the file",
       file, at - saved.begin());
}

// A context of the text that an interrupted run has finished, all but removing PATH.part, out of which it was written
// (finish()). Does that now.
std::optional<IngestResult> finished_before(const ModelSource& source, const std::filesystem::path& path,
                                            const std::vector<std::int32_t>& tokens) {
  std::filesystem::path part = path;
  part += ".part";
  std::error_code error;
  if (!std::filesystem::exists(part, error)) return std::nullopt;
  const offload::Snapshot snapshot = offload::Snapshot::open(path);
  snapshot.require_model(source.identity());
  if (snapshot.tokens() != tokens) return std::nullopt;
  std::filesystem::remove(part);
  return IngestResult{.was_there = true,
                      .tokens = snapshot.token_count(),
                      .file_bytes = static_cast<std::uint64_t>(std::filesystem::file_size(path))};
}

bool ends_with(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& last) {
  return last.size() <= tokens.size() && std::equal(last.rbegin(), last.rend(), tokens.rbegin());
}

// From where the snapshot ends.
IngestResult go_on(const ModelSource& source, offload::Arena& arena, offload::SnapshotWriter writer,
                   const offload::Snapshot& snapshot, const std::vector<std::int32_t>& tokens,
                   const std::filesystem::path& path, bool anew, const IngestOptions& options,
                   const PrefillProgress& progress) {
  announce(source, options, tokens, &snapshot);
  keep_checkpoints(writer, source, snapshot, options);
  const SessionOptions reading = as_read(snapshot, options.session);
  Session session(source.model, arena, reading, snapshot);
  begin_indices(session, &snapshot, options);
  return read_on(std::move(writer), std::move(session), tokens, path, anew, reading.chunk_tokens, options, progress);
}

// The whole of `tokens`, into PATH.part first, which goes on where an interrupted run left it.
IngestResult read_anew(const ModelSource& source, offload::Arena& arena, const std::vector<std::int32_t>& tokens,
                       const std::filesystem::path& path, const IngestOptions& options,
                       const PrefillProgress& progress) {
  std::error_code error;
  std::filesystem::path part = path;
  part += ".part";
  if (!std::filesystem::exists(part, error)) {
    announce(source, options, tokens, nullptr);
    const int chunk = options.session.chunk_tokens;
    Session session(source.model, arena, options.session);
    begin_indices(session, nullptr, options);
    offload::SnapshotWriter writer =
        offload::SnapshotWriter::create(part, describe_context(source, options.session, options.checkpoints));
    writer.keep(kept_checkpoints(source.model.config(), options.checkpoints));
    return read_on(std::move(writer), std::move(session), tokens, path, /*anew=*/true, chunk, options, progress);
  }
  offload::SnapshotWriter writer = offload::SnapshotWriter::open_to_append(part);
  const offload::Snapshot snapshot = writer.snapshot();
  snapshot.require_model(source.identity());
  require_same_beginning(snapshot.tokens(), tokens, part.string());
  return go_on(source, arena, std::move(writer), snapshot, tokens, path, /*anew=*/true, options, progress);
}

}  // namespace

SessionOptions as_read(const offload::Snapshot& snapshot, SessionOptions options) {
  const ReadingNote note = read_note(snapshot.description().note, snapshot.path().string());
  options.cache.block_tokens = snapshot.description().shape.block_tokens;
  options.cache.columns = snapshot.description().shape.columns;
  options.cache.rows = snapshot.description().shape.rows;
  options.chunk_tokens = note.chunk_tokens;
  options.prefill = note.prefill;
  return options;
}

offload::ModelIdentity identity_of(const std::filesystem::path& model, std::string_view rope_overrides) {
  std::string name = std::filesystem::weakly_canonical(model).string();
  if (name.size() > 255) name.erase(0, name.size() - 255);
  return {fingerprint(model, rope_overrides), name};
}

offload::ModelIdentity ModelSource::identity() const {
  return identity_of(directory, model.config().rope_overrides);
}

offload::SnapshotDescription describe_context(const ModelSource& source, const SessionOptions& session,
                                              int checkpoints) {
  return {source.identity(), store_shape(source.model.config(), session.cache), source.model.config().layers,
          write_note({session.chunk_tokens, session.prefill, checkpoints})};
}

int kept_checkpoints(const ModelConfig& config, int wanted) {
  if (wanted > 0) return wanted;
  return config.count(LayerKind::recurrent) > 0 ? 4 : 1;
}

void save_checkpoint(offload::SnapshotWriter& writer, const Session& session, std::span<const std::int32_t> tokens,
                     std::span<const offload::SnapshotAttachment> attachments, bool complete) {
  const std::vector<offload::SnapshotTail> tails = session.cache().tails();
  std::vector<offload::TailImage> images;
  for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
  writer.checkpoint(session.cache().store(), tokens, images, attachments, complete);
}

IngestResult ingest(const ModelSource& source, offload::Arena& arena, std::string_view text,
                    const std::filesystem::path& path, const IngestOptions& options, const PrefillProgress& progress) {
  const std::vector<std::int32_t> tokens = source.tokenizer.encode_prompt(text);
  if (tokens.empty()) fail("there is no text to read into {}", path.string());
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    if (const auto there = finished_before(source, path, tokens)) return *there;
    fail("{}: exists already; choose another name, remove it, or go on with it by --append", path.string());
  }
  return read_anew(source, arena, tokens, path, options, progress);
}

IngestResult append_to(const ModelSource& source, offload::Arena& arena, std::string_view text,
                       const std::filesystem::path& path, const IngestOptions& options,
                       const PrefillProgress& progress) {
  offload::SnapshotWriter writer = offload::SnapshotWriter::open_to_append(path);
  const offload::Snapshot snapshot = writer.snapshot();
  snapshot.require_model(source.identity());
  const std::vector<std::int32_t> saved = snapshot.tokens();
  std::vector<std::int32_t> tokens(saved.begin(), saved.begin() + snapshot.finished_tokens());
  const std::vector<std::int32_t> more = source.tokenizer.encode(text, false);
  if (more.empty()) fail("there is no text to append to {}", path.string());
  if (snapshot.complete() && !options.again && ends_with(tokens, more)) {
    return {.was_there = true, .tokens = snapshot.token_count(), .file_bytes = writer.file_bytes()};
  }
  tokens.insert(tokens.end(), more.begin(), more.end());
  require_same_beginning(saved, tokens, path.string());
  return go_on(source, arena, std::move(writer), snapshot, tokens, path, /*anew=*/false, options, progress);
}

IngestResult update(const ModelSource& source, offload::Arena& arena, std::string_view text,
                    const std::filesystem::path& path, const IngestOptions& options, const PrefillProgress& progress) {
  const std::vector<std::int32_t> tokens = source.tokenizer.encode_prompt(text);
  if (tokens.empty()) fail("there is no text to read into {}", path.string());
  std::optional<offload::SnapshotWriter> writer = offload::SnapshotWriter::open_to_append(path);
  const offload::Snapshot whole = writer->snapshot();
  whole.require_model(source.identity());
  const std::vector<std::int32_t> saved = whole.tokens();
  const std::int64_t same = std::ranges::mismatch(saved, tokens).in1 - saved.begin();
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (whole.complete() && saved.size() == tokens.size() && same == count) {
    return {.was_there = true, .tokens = count, .same = same, .file_bytes = writer->file_bytes()};
  }
  const std::optional<offload::Snapshot> snapshot = whole.back_to(same);
  IngestResult result;
  if (!snapshot || snapshot->cached_tokens() == 0) {
    writer.reset();
    IngestOptions as_before = options;
    as_before.session = as_read(whole, options.session);
    as_before.checkpoints = wanted_checkpoints(options, &whole);
    result = read_anew(source, arena, tokens, path, as_before, progress);
  } else {
    writer->go_back(same);
    result = go_on(source, arena, std::move(*writer), *snapshot, tokens, path, /*anew=*/false, options, progress);
  }
  result.same = same;
  return result;
}

void add_indices(const ModelSource& source, offload::Arena& arena, const std::filesystem::path& path,
                 const IngestOptions& options) {
  offload::SnapshotWriter writer = offload::SnapshotWriter::open_to_append(path);
  const offload::Snapshot snapshot = writer.snapshot();
  if (!snapshot.complete()) {
    fail("{}: is unfinished; run the ingest that was interrupted again, to its end", path.string());
  }
  snapshot.require_model(source.identity());
  keep_checkpoints(writer, source, snapshot, options);
  Session session(source.model, arena, as_read(snapshot, options.session), snapshot);
  for (const auto& method : options.indices) {
    try {
      if (restore_index(session, snapshot, *method)) continue;
    } catch (const Error&) {  // damaged: this is how it is made again
    }
    session.attach_method(*method);
  }
  const std::vector<offload::SnapshotAttachment> built = build_indices(session, options);
  save_checkpoint(writer, session, snapshot.tokens(), built, true);
  writer.finish(path);
}

bool restore_index(Session& session, const offload::Snapshot& snapshot, const Method& method) {
  if (method.state_key().empty()) return false;
  const auto saved = snapshot.attachment(method.state_key());
  if (!saved) return false;
  try {
    session.restore(method, *saved);
  } catch (const Error& error) {
    fail("{}: its index '{}': {}; make it again by hayloft index", snapshot.path().string(), method.state_key(),
         error.what());
  }
  return true;
}

Session open_context(const ModelSource& source, offload::Arena& arena, const offload::Snapshot& snapshot,
                     const SessionOptions& options, const Method* method) {
  snapshot.require_model(source.identity());
  Session session(source.model, arena, as_read(snapshot, options), snapshot);
  if (method != nullptr && !method->state_key().empty()) {
    const auto restore = [&] {
      if (!restore_index(session, snapshot, *method)) session.attach_method(*method);
    };
    options.ranks != nullptr ? cluster::together(*options.ranks, restore) : restore();
  }
  const std::vector<std::int32_t> tokens = snapshot.tokens();
  const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(session.tokens()));
  const bool sees_queries = method != nullptr && !method->state_key().empty();
  if (rest.empty() || sees_queries || !restore_text_end(session, snapshot, rest)) session.append(rest);
  session.set_prefill(options.prefill);
  if (method != nullptr) warm(session, *method, source.model.backend(), snapshot);
  return session;
}

}  // namespace hayloft::runtime
