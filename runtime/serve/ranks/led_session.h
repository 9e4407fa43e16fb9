#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/context/ingest.h"
#include "runtime/decode/session.h"
#include "runtime/serve/ranks/leader.h"

namespace hayloft::runtime::serve {

// A session of the engine. Over ranks the others have their part of it, and do with it what is done here. Sessions of
// one engine are for one thread, but for their end.
class LedSession {
 public:
  // One that nobody else has a part of.
  LedSession(Session session) : session_(std::move(session)) {}  // NOLINT(google-explicit-constructor)
  // An empty one, which decodes by `method`. leader: null alone, as below.
  static LedSession open(const std::shared_ptr<Leader>& leader, const ModelSource& source, offload::Arena& arena,
                         const SessionOptions& options, const SharedMethod& method);

  LedSession fork() const;
  // Session::fork_at and rewinds_to; over ranks there is none but the whole.
  LedSession fork_at(std::int64_t tokens) const;
  std::int64_t rewinds_to() const { return session_.rewinds_to(); }
  void append(std::span<const std::int32_t> tokens, bool more_follows);
  std::vector<float> score(std::span<const std::int32_t> tokens);
  void prepare(const Method& method);
  // Session::step_together of these: steps[i].session is that of sessions[i]. Over ranks without samplers.
  static void step_together(std::span<const LedSession* const> sessions, std::span<Session::Step> steps);

  Session& here() { return session_; }
  const Session& here() const { return session_; }
  bool over_ranks() const { return static_cast<bool>(led_); }
  std::int64_t tokens() const { return session_.tokens(); }

  // All blocks that it has now are those of a file, which it has been opened from: where they lie in it, or copied.
  // Forks know it too.
  void set_opened(bool in_file);
  std::size_t opened_blocks(int layer) const { return opened_.empty() ? 0 : opened_[static_cast<std::size_t>(layer)]; }
  bool opened_in_file() const { return in_file_; }
  const Cache& cache() const { return session_.cache(); }

 private:
  friend LedSession open_saved_led(const std::shared_ptr<Leader>& leader, const std::string& context,
                                   const std::function<Session()>& open);
  LedSession(Session session, Led led) : session_(std::move(session)), led_(std::move(led)) {}
  LedSession opened_like(LedSession forked) const;

  Session session_;
  Led led_;
  std::vector<std::size_t> opened_;  // blocks by global layer; empty: none
  bool in_file_ = false;
};

// One that `open` opens from a saved context, as the other ranks do. What it throws as a SharedError is thrown here,
// and nothing is lost.
LedSession open_saved_led(const std::shared_ptr<Leader>& leader, const std::string& context,
                          const std::function<Session()>& open);

// The saved context at `path`, or over ranks this one's part of it, opened by all of them together. It decodes by
// `method`, with what was found to be needed of the context's columns. Throws a SharedError where a rank cannot open
// it.
Session open_saved(const ModelSource& source, offload::Arena& arena, const std::filesystem::path& path,
                   const SessionOptions& options, const SharedMethod& method);

}  // namespace hayloft::runtime::serve
