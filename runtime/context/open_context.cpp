#include <algorithm>

#include "offload/error.h"
#include "runtime/context/hot_context.h"
#include "runtime/context/ingest.h"
#include "runtime/context/reading_note.h"
#include "runtime/context/text_end.h"
#include "runtime/peers/agreement.h"

// Saved contexts, opened.
namespace hayloft::runtime {

SessionOptions as_read(const offload::Snapshot& snapshot, SessionOptions options) {
  const ReadingNote note = read_note(snapshot.description().note, snapshot.path().string());
  options.cache.block_tokens = snapshot.description().shape.block_tokens;
  options.cache.columns = snapshot.description().shape.columns;
  options.cache.rows = snapshot.description().shape.rows;
  options.chunk_tokens = note.chunk_tokens;
  options.prefill = note.prefill;
  options.products = note.products;
  return options;
}

PrefillRead saved_prefill_read(const offload::Snapshot& snapshot) {
  const auto saved = snapshot.attachment(prefill_read_name);
  if (!saved) return {};
  try {
    return load_prefill_read(*saved);
  } catch (const Error& wrong) {
    fail("{}: {}", snapshot.path().string(), wrong.what());
  }
}

ReadingNote carried_note(const offload::Snapshot& snapshot) {
  using Kind = PrefillOptions::Kind;
  ReadingNote note = read_note(snapshot.description().note, snapshot.path().string());
  if (note.prefill.kind != Kind::sparse) {
    if (!reads_all(note.prefill, snapshot.token_count())) return note;
    note.prefill.kind = Kind::exact;
  }
  try {
    const bool counted = std::ranges::count(snapshot.attachments(), prefill_read_name) > 0;
    if (!counted) return note;
    note.prefill.kind = left_out(whole_prefill_read(snapshot)) ? Kind::sparse : Kind::exact;
  } catch (const Error&) {  // --verify says what is damaged
    note.prefill.kind = Kind::sparse;
  }
  return note;
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
  cluster::together(options.peers(), [&] { snapshot.require_model(source.identity()); });
  Session session(source.model, arena, as_read(snapshot, options), snapshot);
  ApproximateTokens approximate = read_note(snapshot.description().note, snapshot.path().string()).approximate;
  approximate.cut(snapshot.token_count());
  session.set_earlier_approximate_tokens(std::move(approximate));
  const PrefillOptions& read_by = session.prefill_options();
  if (read_by.kind != PrefillOptions::Kind::sparse && !reads_all(read_by, snapshot.token_count())) {
    session.set_context_read_by(prefill_label(read_by));
  }
  const auto nobody_knows = [&, label = prefill_label(read_by)] {
    session.set_context_read_by(label + ", of which nobody knows what it left out");
  };
  const auto count_as_read = [&](PrefillRead (*figures)(const offload::Snapshot&)) {
    try {
      session.set_prefill_read(figures(snapshot));
    } catch (const Error&) {  // --verify says what is damaged
      nobody_knows();
    }
  };
  count_as_read(saved_prefill_read);
  if (read_by.kind == PrefillOptions::Kind::sparse && session.tokens() > 0 && session.prefill_read().empty() &&
      !std::ranges::count(snapshot.attachments(), prefill_read_name)) {
    nobody_knows();
  }
  if (method != nullptr && !method->state_key().empty()) {
    cluster::together(options.peers(), [&] {
      if (!restore_index(session, snapshot, *method)) session.attach_method(*method);
    });
  }
  const std::vector<std::int32_t> tokens = snapshot.tokens();
  const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(session.tokens()));
  const bool sees_queries = method != nullptr && !method->state_key().empty();
  if (!rest.empty() && !sees_queries && restore_text_end(session, snapshot, rest)) {
    count_as_read(whole_prefill_read);
  } else {
    session.append(rest);
  }
  session.set_prefill(options.prefill);
  if (method != nullptr) warm(session, *method, source.model.backend(), snapshot);
  return session;
}

}  // namespace hayloft::runtime
