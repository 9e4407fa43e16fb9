#include "runtime/context/ingest.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "offload/error.h"
#include "offload/output_file.h"
#include "offload/snapshot/shards.h"
#include "runtime/checkpoint/fingerprint.h"
#include "runtime/checkpoint/gguf/file.h"
#include "runtime/context/context_file.h"
#include "runtime/context/earlier_reads.h"
#include "runtime/context/reading.h"
#include "runtime/context/reading_note.h"
#include "runtime/context/shard_parts.h"
#include "runtime/context/whole_file.h"
#include "runtime/peers/agreement.h"

namespace hayloft::runtime {
namespace {

void require_same_beginning(const std::vector<std::int32_t>& saved, const std::vector<std::int32_t>& tokens,
                            const std::string& file) {
  const auto [at, other] = std::mismatch(saved.begin(), saved.end(), tokens.begin(), tokens.end());
  if (at == saved.end()) return;
  fail("{}: holds another text, different from token {} on, of an interrupted run; finish that one or remove the file",
       file, at - saved.begin());
}

// A context of the text that an interrupted run has finished, all but removing PATH.part, out of which it was written
// (finish()). Does that now.
std::optional<IngestResult> finished_before(const ModelSource& source, const ContextFile::Place& place,
                                            const std::vector<std::int32_t>& tokens) {
  const std::optional<std::filesystem::path> part = ContextFile::left_part(place);
  if (!part) return std::nullopt;
  const offload::Snapshot snapshot = offload::Snapshot::open(place.path);
  snapshot.require_model(source.identity());
  if (snapshot.tokens() != tokens) return std::nullopt;
  std::filesystem::remove(*part);
  return IngestResult{.was_there = true,
                      .tokens = snapshot.token_count(),
                      .file_bytes = static_cast<std::uint64_t>(std::filesystem::file_size(place.path))};
}

bool ends_with(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& last) {
  return last.size() <= tokens.size() && std::equal(last.rbegin(), last.rend(), tokens.rbegin());
}

// Nothing is to be written; but shards that were finished may still be without their manifest.
IngestResult was_there(ContextFile file, const offload::Snapshot& snapshot) {
  const IngestResult result{.was_there = true, .tokens = snapshot.token_count(), .file_bytes = file.bytes()};
  if (!file.named()) file.finish();
  return result;
}

ContextFile::Place place_of(const std::filesystem::path& path, const IngestOptions& options) {
  return {path, &options.session.peers(), options.calls};
}

bool has_attachment(const offload::Snapshot& snapshot, const offload::SnapshotAttachment& attachment) {
  try {
    const auto saved = snapshot.attachment(attachment.name);
    return saved && std::ranges::equal(*saved, attachment.bytes);
  } catch (const Error&) {  // damaged
    return false;
  }
}

// Returns the attachments, and behind them what else the snapshot has beside it.
std::vector<offload::SnapshotAttachment> with_those_of(const offload::Snapshot& snapshot,
                                                       std::vector<offload::SnapshotAttachment> attachments) {
  for (const std::string& name : snapshot.attachments()) {
    if (std::ranges::find(attachments, name, &offload::SnapshotAttachment::name) != attachments.end()) continue;
    const auto saved = snapshot.attachment(name);
    attachments.push_back({name, {saved->begin(), saved->end()}});
  }
  return attachments;
}

// The whole of `tokens`, into PATH.part first, which goes on where an interrupted run left it.
IngestResult read_anew(const ModelSource& source, offload::Arena& arena, const std::vector<std::int32_t>& tokens,
                       const ContextFile::Place& place, const IngestOptions& options, const PrefillProgress& progress) {
  std::optional<ContextFile> part = ContextFile::open_part(place, tokens);
  if (!part) return begin_reading(source, arena, place, tokens, options, progress);
  const offload::Snapshot snapshot = part->snapshot();
  cluster::together(*place.ranks, [&] {
    snapshot.require_model(source.identity());
    require_same_beginning(snapshot.tokens(), tokens, snapshot.path().string());
  });
  return go_on_reading(source, arena, std::move(*part), snapshot, /*back_from=*/nullptr, tokens, options, progress);
}

}  // namespace

offload::ModelIdentity identity_of(const std::filesystem::path& model, std::string_view run) {
  std::string name = std::filesystem::weakly_canonical(model).string();
  if (name.size() > 255) name.erase(0, name.size() - 255);
  offload::ModelIdentity identity{fingerprint(model, run), name};
  if (gguf::is_file(model)) identity.former = former_fingerprint(model, identity.fingerprint, run);
  return identity;
}

offload::ModelIdentity ModelSource::identity() const {
  return identity_of(directory, model.run_options());
}

offload::SnapshotDescription describe_context(const ModelSource& source, const SessionOptions& session,
                                              int checkpoints) {
  return {source.identity(), store_shape(source.model.config(), session.cache), source.model.config().layers,
          write_note({session.chunk_tokens, session.prefill, checkpoints, source.model.backend().products()})};
}

int kept_checkpoints(const ModelConfig& config, int wanted) {
  if (wanted > 0) return wanted;
  return config.count(LayerKind::recurrent) > 0 ? 4 : 1;
}

IngestResult ingest(const ModelSource& source, offload::Arena& arena, std::string_view text,
                    const std::filesystem::path& path, const IngestOptions& options, const PrefillProgress& progress) {
  const ContextFile::Place place = place_of(path, options);
  std::vector<std::int32_t> tokens;
  std::optional<IngestResult> there;
  cluster::together(options.session.peers(), [&] {
    tokens = source.tokenizer.encode_prompt(text);
    if (tokens.empty()) fail("there is no text to read into {}", path.string());
    there = finished_before(source, place, tokens);
    if (there) return;
    require_new(path);
    offload::require_writable(path);
  });
  if (there) return *there;
  return read_anew(source, arena, tokens, place, options, progress);
}

IngestResult append_to(const ModelSource& source, offload::Arena& arena, std::string_view text,
                       const std::filesystem::path& path, const IngestOptions& options,
                       const PrefillProgress& progress) {
  ContextFile file = ContextFile::open_existing(place_of(path, options));
  const offload::Snapshot snapshot = file.snapshot();
  std::vector<std::int32_t> tokens;
  bool there = false;
  cluster::together(options.session.peers(), [&] {
    snapshot.require_model(source.identity());
    const std::vector<std::int32_t> saved = snapshot.tokens();
    tokens.assign(saved.begin(), saved.begin() + snapshot.finished_tokens());
    const std::vector<std::int32_t> more = source.tokenizer.encode(text, false);
    if (more.empty()) fail("there is no text to append to {}", path.string());
    there = snapshot.complete() && (!options.again || !file.named()) && ends_with(tokens, more);
    if (there) return;
    if (snapshot.complete() && !file.named()) {
      fail(
          "{}: {} tokens are in its shards, and it does not say so yet: another text was being added; do that again "
          "first",
          path.string(), tokens.size());
    }
    tokens.insert(tokens.end(), more.begin(), more.end());
    require_same_beginning(saved, tokens, path.string());
  });
  if (there) return was_there(std::move(file), snapshot);
  return go_on_reading(source, arena, std::move(file), snapshot, /*back_from=*/nullptr, tokens, options, progress);
}

IngestResult update(const ModelSource& source, offload::Arena& arena, std::string_view text,
                    const std::filesystem::path& path, const IngestOptions& options, const PrefillProgress& progress) {
  ContextFile::Place place = place_of(path, options);
  std::optional<ContextFile> file = ContextFile::open_existing(place);
  const offload::Snapshot whole = file->snapshot();
  std::vector<std::int32_t> tokens, saved;
  cluster::together(*place.ranks, [&] {
    tokens = source.tokenizer.encode_prompt(text);
    if (tokens.empty()) fail("there is no text to read into {}", path.string());
    whole.require_model(source.identity());
    saved = whole.tokens();
  });
  const std::int64_t same = std::ranges::mismatch(saved, tokens).in1 - saved.begin();
  IngestResult result;
  std::optional<offload::Snapshot> snapshot = whole.back_to(same);
  const bool there = whole.complete() && saved == tokens;
  cluster::together(*place.ranks, [&] {  // else what is said of it would be said of what is read now alone
    if (!there && snapshot && !prefill_read_at(whole, *snapshot)) snapshot.reset();
  });
  if (there) {
    result = was_there(std::move(*file), whole);
  } else if (!snapshot || snapshot->cached_tokens() == 0) {
    place.replaced = file->snapshot().description().saving;
    file.reset();
    IngestOptions as_before = options;
    as_before.session = as_read(whole, options.session);
    as_before.choose_columns = false;  // it has been made
    as_before.checkpoints = wanted_checkpoints(options, &whole);
    result = read_anew(source, arena, tokens, place, as_before, progress);
  } else {
    file->writer().go_back(same);
    result = go_on_reading(source, arena, std::move(*file), *snapshot, &whole, tokens, options, progress);
  }
  result.same = same;
  return result;
}

bool add_indices(const ModelSource& source, offload::Arena& arena, const std::filesystem::path& path,
                 const IngestOptions& options) {
  if (offload::read_manifest(path)) {
    fail("{}: lies in shards, which keep no index; --attn ann builds one when the context is opened", path.string());
  }
  offload::SnapshotWriter writer = offload::SnapshotWriter::open_to_append(path);
  const offload::Snapshot snapshot = writer.snapshot();
  if (!snapshot.complete()) {
    fail("{}: is unfinished; run the ingest that was interrupted again, to its end", path.string());
  }
  refuse_shard(snapshot, ", which keeps no index; --attn ann builds one when the context is opened");
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
  std::vector<offload::SnapshotAttachment> built = build_indices(session, options);
  if (std::ranges::all_of(built, [&](const auto& index) { return has_attachment(snapshot, index); })) return false;
  const std::vector<std::int32_t> tokens = snapshot.tokens();
  std::vector<offload::SnapshotAttachment> all = with_those_of(snapshot, built);
  std::uint64_t beside = 0;
  for (const offload::SnapshotAttachment& each : all) beside += each.bytes.size();
  if (worth_compacting(writer, session, tokens, beside)) {
    write_whole(path, snapshot.description(), session, tokens, all);
    return true;
  }
  save_checkpoint(writer, session, tokens, built, true);
  writer.finish(path);
  return true;
}

}  // namespace hayloft::runtime
