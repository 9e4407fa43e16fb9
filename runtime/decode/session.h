#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/host/arena.h"
#include "runtime/attention/attender.h"
#include "runtime/attention/method.h"
#include "runtime/attention/step_observer.h"
#include "runtime/cache/cache.h"
#include "runtime/decode/decode_attention.h"
#include "runtime/decode/draft_head.h"
#include "runtime/decode/draft_length.h"
#include "runtime/decode/model.h"
#include "runtime/decode/prefill.h"
#include "runtime/decode/prefill_attention.h"
#include "runtime/decode/prefill_read.h"
#include "runtime/decode/sampler.h"

namespace hayloft::runtime {

// Says how a session keeps its cache and reads its prompts.
struct SessionOptions {
  CacheOptions cache;
  int chunk_tokens = 2048;  // prefill this many tokens at a time
  PrefillOptions prefill = {};
  gpu::Products products = gpu::Products::exact;  // of what a saved context was read by
  // The place where its global layers attend: this process alone, unless said otherwise. Where several hold the context
  // together, each has a session of the same calls, and cache.shard is its own of the attender's peers().
  SharedAttender attender = local_attender();

  cluster::Communicator& peers() const { return attender->peers(); }
  // From now on by this attender, and of the context its peer's part. Throws std::logic_error where there is none.
  void attend_by(SharedAttender by);
};

// Called after each chunk of a prefill (and by ingest before the first) with how many tokens are done. Throw to stop:
// the chunks so far stay, unless the prefill goes layer by layer, which adds all of them or none.
using PrefillProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// One sequence being read or generated. Forks share the context they have in common, without copying it: prefill a book
// once, ask each question in a fork. Not thread-safe; different sessions may run on different threads. The model and
// the arena must outlive it, and so must the attender's peers. A session that was moved from may be assigned to or
// destroyed, and nothing else. Pointers that are null, and numbers and shapes that no call can mean, are a programmer's
// mistake: std::logic_error, and the session is as it was.
class Session {
 public:
  Session(const Model& model, offload::Arena& arena, const SessionOptions& options = {});

  // Goes on where a snapshot ends; its blocks stay in the file and are shared. Block size and column format are the
  // snapshot's. Of several peers each opens its part. Throws Error when it does not fit the model.
  Session(const Model& model, offload::Arena& arena, const SessionOptions& options, const offload::Snapshot& snapshot);

  // Decodes by the same method; without observers and with counters of its own.
  Session fork() const;
  // The same behind the first `tokens` alone, as if there had been no others; at least rewinds_to(), which is tokens()
  // where a method keeps something of the sequence, or layers that are not global have moved on.
  Session fork_at(std::int64_t tokens) const;
  std::int64_t rewinds_to() const;
  // Returns whether the last tokens can be taken back at all, once a context is longer than a window.
  bool rewindable() const;

  // Prefill: adds the tokens chunk by chunk, or layer by layer, attending as SessionOptions::prefill says. No logits:
  // the last token of a prompt goes through step(). The newest tokens then give back the device memory that only the
  // prompt needed, unless more of it follows at once.
  void append(std::span<const std::int32_t> tokens, const PrefillProgress& progress = {}, bool more_follows = false);

  // The next `tokens` of the global layers stay in the tails, in memory that is made for them now, however many blocks
  // they fill: for a fork that reads them to give their rows away.
  void hold_in_tails(std::int64_t tokens);

  // Adds T tokens whose keys and values are there already, of every layer those that a tail would hold: the newest rows
  // of a sliding-window layer, all T of a global one. The same, to the bit, as reading the tokens, but that no method
  // that is attached sees their queries. Not for models with recurrent layers. Throws std::logic_error where a layer is
  // missing, or its rows are not of that shape.
  void append_rows(std::span<const offload::TailImage> layers, int T);

  // Sets how append() attends from now on: a question may be read in another way than the context it is put to. Throws
  // Error.
  void set_prefill(const PrefillOptions& prefill);
  // Returns int8 also where only a saved context that it goes on with was read so.
  gpu::Products products() const { return std::max(options_.products, model_->backend().products()); }
  const PrefillOptions& prefill_options() const { return options_.prefill; }

  // Says how the saved context was read that it goes on from, as prefill_label(), where not exactly or sparsely.
  const std::string& context_read_by() const { return context_read_by_; }
  void set_context_read_by(std::string label) { context_read_by_ = std::move(label); }

  // Returns the tokens that append() has read by a window or topk that left positions out, in this session or those
  // that it was forked from. What was read sparsely is counted instead.
  const ApproximateTokens& read_by() const { return read_by_; }

  // Returns the tokens of the text that were decoded approximately before this session, in one that it was forked from
  // or in a saved context.
  const ApproximateTokens& earlier_approximate_tokens() const { return earlier_approximate_; }
  void set_earlier_approximate_tokens(ApproximateTokens tokens) { earlier_approximate_ = std::move(tokens); }
  // Returns these and those of this session; but not what the last layer alone left out, which is in no key or value.
  ApproximateTokens approximate_tokens() const;

  // Counts what has been read sparsely so far, in a saved context and since; forks go on from it.
  const PrefillRead& prefill_read() const { return prefill_read_; }
  void set_prefill_read(PrefillRead read) { prefill_read_ = std::move(read); }

  // Decodes by `method` from now on; exactly (`dense`) until then. What it keeps of the sequence is attached. Returns
  // the session. Throws Error where the method does not go with the model, as one that was made for longer heads.
  Session& set_method(SharedMethod method);

  // From now on what the method keeps of a sequence is there, sees the queries of what is appended, and is forked with
  // the session; several methods may be attached. For methods that select by the queries of a prompt: call it, or
  // set_method(), before the prompt is appended. An append that fails drops what they kept.
  void attach_method(const Method& method);

  // Lets go of what an attached method keeps, unless the session decodes by it.
  void detach_method(const Method& method);

  // Cache::use_columns of what has been read so far. Not once something is attached that depends on the columns.
  void use_columns(offload::ColumnFormat columns, offload::Arena& arena);

  // Brings what the method keeps of the sequence up to now, which may take long (an index is built), so that the first
  // step does not have to. Throws Error where the method had to see the prompt being read and did not.
  void prepare(const Method& method, const StateProgress& progress = {});

  // Instead of building it: what save() gave for a session at this point or before. Throws Error, without the name of
  // the file it came from.
  void restore(const Method& method, std::span<const std::byte> saved);

  // Returns what the method keeps of the sequence; null where that is nothing, or not there yet.
  MethodState* state(const Method& method) const;

  // Decodes one token: adds it and returns the logits of what follows, [vocab].
  std::vector<float> step(std::int32_t token);

  // Decodes one token and draws the next: of several peers the first draws for all. Only the logits that decide leave
  // the device.
  std::int32_t next(std::int32_t token, Sampler& sampler);

  // One token each of several sessions, each as step() or next() decodes it alone, to the bit, but layer by layer:
  // what they share, weights and the blocks of a context, is read by all of them while it is near
  // (Model::forward_together). They are different sessions of one model, and compute in the workspace of the first. A
  // step that fails leaves its session as it was and the others alone; one whose memory-mapped context was cut short,
  // or that nothing can be drawn from, has its token. Before any step throws std::bad_alloc, and std::logic_error where
  // the sessions are not different ones of one model.
  struct Step {
    Session* session = nullptr;
    std::int32_t token = 0;
    Sampler* sampler = nullptr;  // draws the next token; null: all logits are wanted
    std::int32_t next = 0;       // out, with a sampler
    std::vector<float> logits;   // out, [vocab], without
    std::exception_ptr failure;  // out
  };
  static void step_together(std::span<Step> steps);

  // Decodes the first of the tokens, as many as one pass takes (at most verified_at_once()), attending exactly,
  // whatever the method: the logits of each, f32 [T][vocab] in memory of the device, are to the bit those of T single
  // steps by `dense`. keep(logits, T) returns how many of the T stay, 1 to T; the others leave no trace, and if it
  // throws, none stays. Steps, counters and attended_share() are those of the tokens that stay, the bytes those of the
  // pass. Tokens that an observer wants to see are not taken together. Returns how many stay. Throws Error where the
  // backend or the attender cannot.
  int verify(std::span<const std::int32_t> tokens, const KeepTokens& keep);
  int verified_at_once() const;  // 1 over ranks
  // Returns how many tokens from here on may be verified in place of single steps, because the method attends exactly
  // in every layer and no observer wants to see them; 0 where none is, or a pass takes one token.
  std::int64_t exact_ahead() const;
  // Draws what follows from a token's logits among those.
  std::int32_t draw(const float* logits, Sampler& sampler) const;

  // From now on drafts are decoded by `method`, forks' too; check_draft_method() has been asked. Throws Error where the
  // session could not decode by it.
  void set_draft_method(SharedMethod method);
  // While one lives, what is decoded is drafted; nothing of it is left then, but for the bytes it has read.
  class Drafts {
   public:
    explicit Drafts(Session& session) : session_(session) { session_.cache_.begin_drafts(); }
    ~Drafts() { session_.cache_.end_drafts(); }
    Drafts(const Drafts&) = delete;
    Drafts& operator=(const Drafts&) = delete;

   private:
    Session& session_;
  };
  // Decodes one token by the draft method, which has been set, and draws the next.
  std::int32_t draft(std::int32_t token, Sampler& sampler);
  // Drafts up to `most` tokens behind `token`, which follows the text and is not in the session, by the model's head
  // that predicts further tokens; fewer, or none, where that knows too little of the text. Nothing of it is left then.
  // Throws Error where the model has no head.
  std::vector<std::int32_t> draft_by_head(std::int32_t token, Sampler sampler, int most);
  bool has_head() const { return head_ != nullptr; }
  bool head_knows_text() const { return head_ && head_->knows(tokens()); }
  Counters draft_counters() const { return drafts_.read_counters(); }  // of all drafts by the draft method
  // Says what drafts cost here, by counts of bytes and multiplications. Throws where draft() or draft_by_head() would.
  DraftCosts draft_costs(DraftSource source) const;
  // Returns what all of it takes of the device's memory: the cache, and what the model's head keeps.
  std::uint64_t device_bytes() const { return cache_.device_bytes() + (head_ ? head_->device_bytes() : 0); }

  // Adds the tokens and returns all their logits, [T][vocab], attending exactly.
  std::vector<float> score(std::span<const std::int32_t> tokens);

  // Returns what the first of the peers has drawn, on all of them.
  std::int32_t agreed(std::int32_t token) const;

  std::int64_t tokens() const { return cache_.tokens(); }
  const Cache& cache() const { return cache_; }
  bool over_ranks() const { return options_.peers().several(); }
  const ModelConfig& config() const { return model_->config(); }
  double held_share(Kind kind) const { return attention_.held_share(kind); }  // DecodeAttention's, of those steps
  Counters counters() const { return attention_.read_counters(); }            // of the steps of this session
  std::int64_t steps() const { return steps_; }
  // Mean fraction of the context attended to, over steps, global layers and lists of positions; 1 for `dense` and
  // where all layers slide, 0 before the first step.
  double attended_share() const;
  // What those steps predict of their own error, whose rest is estimated by scores.
  const PredictedError& predicted_error() const { return attention_.predicted; }
  // Counts how many steps x global layers each method has attended, by its label; of `auto`, those that it chose.
  std::map<std::string, std::int64_t> methods_used() const { return attention_.used(); }

  // Computes in that memory from now on instead of in its own: sessions that take turns on one thread need it only
  // once. Forks have their own again.
  void share_workspace(std::shared_ptr<Workspace> workspace);
  std::shared_ptr<Workspace> workspace() const { return workspace_; }

  // Calls the observer for what is decoded from now on, after those that are there already.
  void add_observer(std::shared_ptr<StepObserver> observer) { attention_.add_observer(std::move(observer)); }

 private:
  Session(const Session& other, Cache cache);
  AttentionShape attention_shape() const;
  void require_method(const Method* method) const;
  void require_head() const;
  static void require_different(std::span<const Step> steps);
  void rebind();  // the method to its state, when what is kept has changed
  std::int32_t draw(std::int32_t token, Sampler& sampler);
  void decode(std::int32_t token, const ReadLogits& read);
  ReadLogits read_all(std::vector<float>& logits) const;
  ReadLogits read_candidates(const Sampler& sampler, Candidates& candidates) const;
  void count_step(std::uint64_t spilled_before);
  void read(std::span<const std::int32_t> tokens, AttentionPolicy& attention, const PrefillProgress& progress);
  // Notes how the tokens behind the first `before` were read.
  void note_reading(std::int64_t before);
  // Tells the model's head of tokens that follow `before`; empty where there is none.
  SeeStates told(std::int64_t before);
  // Returns what fits into memory of the device, beside all else, when `tokens` more are read layer by layer. Without a
  // budget of its own the device's memory is the host's: K and V need not be kept there, and the hidden states are
  // there anyway.
  OnDevice fits_device(std::int64_t tokens) const;

  const Model* model_;
  SessionOptions options_;
  Cache cache_;
  std::shared_ptr<Workspace> workspace_ = std::make_shared<Workspace>();
  std::map<std::string, std::unique_ptr<MethodState>> states_;  // by Method::state_key
  DecodeAttention attention_;
  PrefillRead prefill_read_;
  std::string context_read_by_;
  ApproximateTokens read_by_;
  ApproximateTokens earlier_approximate_;
  DecodeAttention drafts_;           // without a method: nothing is drafted
  std::unique_ptr<DraftHead> head_;  // of this text, where the model has one
  std::int64_t steps_ = 0;
  std::int64_t positions_ = 0;  // of the context, summed over the steps
};

}  // namespace hayloft::runtime
