#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/context/ingest.h"
#include "runtime/serve/contexts.h"
#include "runtime/serve/generation.h"
#include "runtime/serve/job.h"
#include "runtime/serve/read_history.h"
#include "runtime/serve/session_pool.h"

namespace hayloft::runtime::serve {

struct EngineOptions {
  SessionOptions session;  // chunk_tokens: how long one prompt may keep the others waiting
  SharedMethod method;     // that answers are decoded with
  // Gives answers of `dense` that ask for nothing besides several tokens a pass.
  std::optional<DraftOptions> drafts = {};
  // Drafts only while a single answer is decoded, which shares no reading with others, and from its 9th token on: a
  // text of a million tokens takes a second until it can be copied from.
  bool drafts_for_one = false;
  int parallel = 8;                 // requests read and decoded in turns
  int queue = 64;                   // that wait for a place; more are refused
  std::int64_t longest = 0;         // tokens of prompt and answer together; 0: no limit but memory
  std::size_t kept_reading = 2048;  // a prompt of so many tokens is read to its end when its client has left
  SavedPromptOptions saved;         // long prompts on the disk; not over ranks
  // Over several session.peers(), of which this is the first and the others follow() it: what they all have for keys
  // and values, and what is told of an error that ranks have met while they computed; it ends all of them and does not
  // return.
  std::uint64_t host_bytes = 0;  // 0: what the arena has
  std::function<void(const std::string& problem)> lost = {};
  // Told once, in the engine's thread, of a device that is lost to this process (gpu::DeviceLost): every request has
  // then been failed with 503, and none is admitted any more.
  std::function<void(const std::string& problem)> device_lost = {};
};

// Counts since the start; a copy, taken at one moment.
struct EngineFigures {
  std::uint64_t requests = 0, finished = 0, cancelled = 0, failed = 0, refused = 0;
  std::uint64_t prompt_tokens = 0;  // read
  std::uint64_t cached_tokens = 0;  // of prompts, that did not have to be read
  ReadAgain read_again;             // of the tokens of prompts that were read
  std::uint64_t generated_tokens = 0;
  Counters counters;  // of all steps
  DraftFigures drafts;
  ExpertTraffic experts;  // that come over the link, of prompts too
  int waiting = 0, active = 0, kept_sessions = 0;
  std::uint64_t kept_bytes = 0, host_bytes = 0, host_budget = 0;
  SavedPrompts::Figures saved;
};

// Answers requests over one model, in turns, on a thread of its own: each round decodes one token of every answer and
// reads one chunk of one prompt. What it has read is kept and used again by requests that begin alike. Thread-safe. The
// model, the tokenizer, the arena and the contexts must outlive it.
class Engine {
 public:
  Engine(const ModelSource& source, offload::Arena& arena, const Contexts& contexts, EngineOptions options);
  ~Engine() { close(); }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // A place in the queue; null when it is full. Throws Error on a request that can never be answered: no tokens, ids
  // out of range, longer than `longest`, an audit over ranks.
  std::shared_ptr<Job> submit(GenerationRequest request, std::shared_ptr<GenerationListener> listener);

  // Lets the sessions of a saved context go, whose file has been replaced or removed, or is so by `change`: requests
  // that are submitted afterwards find nothing of what was read from it before, or while it changed.
  void forget_context(const std::string& name, const std::function<void()>& change = {});

  void stop_admitting();  // what waits is failed (503), what runs ends
  void close();           // stops at once; every listener has been told, and none is called again, when it returns
  bool idle() const;      // nothing waits and nothing runs
  bool stopping() const;  // nothing is admitted any more
  EngineFigures figures() const;
  const EngineOptions& options() const { return options_; }

 private:
  using SharedJob = std::shared_ptr<Job>;
  const grammar::Vocabulary& vocabulary();  // made when the first grammar needs it
  void run();
  void admit();
  // Returns the status of a request that could not begin: its saved context is gone, was replaced meanwhile or cannot
  // be asked, else there is no memory.
  int status_of_refusal(const std::string& context, const Error& error) const;
  bool must_wait(const Job& job, std::size_t cached) const;
  bool make_room(const Job& job);
  std::uint64_t needed(const Job& job, const SessionPool::Beginning& kept, bool with_left, bool with_pool) const;
  bool take_over(const SharedJob& job);
  void start(const SharedJob& job);
  void begin(Job& job, LedSession session, std::int64_t context_tokens, std::size_t read);
  LedSession opened(const std::string& context);
  void forget_if_changed(const std::string& context);  // by another program
  void let_go(const std::string& context);
  bool read_on(Job& job);  // a chunk of its prompt; true when it has failed or its client has left
  // A token of every answer, layer by layer together. Those that have ended.
  std::vector<SharedJob> decode(const std::vector<SharedJob>& answers);
  void remove(const SharedJob& job);
  bool left(Job& job);  // its client has, and it is not to go on
  // Its client has left while a long prompt was read: that goes on while nobody else wants the machine.
  bool abandoned(const Job& job) const;
  int places_taken() const;           // by those that are not
  void end_those_left();              // in the queue, of prompts that do not go on, of too many that would
  void give_up(SharedJob job);        // an abandoned one; what it has read is kept
  void hand_over_to(const Job& job);  // gives up what has read for nobody the beginning of this one
  bool fails(Job& job, const std::function<void()>& part);  // whose errors end the job
  void save_prompt(Job& job, bool now);
  void count_read_again(const GenerationRequest& request, std::size_t cached);
  SessionPool::Beginning kept_of(const GenerationRequest& request);
  void keep_boundary(const Job& job);
  void keep_conversation(const Job& job);
  void fork_for_copies(const Job& job);
  bool copies_wait(const Job& job) const;  // other requests with its prompt, for a place
  void drop_for_copies(const Job& job);    // which has begun, or has left the queue
  void keep_session(Job& job);
  void keep_hot_contexts() const;  // what was read often of them, for the next server
  void keep(const std::string& context, std::span<const std::int32_t> tokens,
            const std::function<LedSession()>& session, std::size_t conversation = 0);
  std::uint64_t tail_of(std::int64_t tokens) const;  // in memory of the host
  std::uint64_t whole_tail_of(std::int64_t tokens) const;
  std::uint64_t memory_of(std::int64_t tokens) const;
  std::uint64_t blocks_behind(const Cache& cache, std::int64_t tokens) const;
  std::uint64_t growth(const Job& job) const;
  std::uint64_t growth_behind(const Job& job, const SessionPool::Beginning& kept) const;
  bool tails_in_host() const;
  std::uint64_t budget() const;  // for keys and values
  void fail_job(Job& job, int status, const std::string& message);
  void end_on_lost_device();
  void count_places();
  void publish();

  const ModelSource source_;
  offload::Arena& arena_;
  const Contexts& contexts_;
  const EngineOptions options_;
  const std::shared_ptr<Leader> leader_;  // null: alone

  std::once_flag vocabulary_made_;
  std::unique_ptr<const grammar::Vocabulary> vocabulary_;

  mutable std::mutex mutex_;  // of what follows, up to `thread_`
  std::condition_variable wake_;
  std::deque<SharedJob> arrived_;
  std::vector<std::string> forgotten_;
  bool stopping_ = false;
  bool closed_ = false;
  EngineFigures figures_;

  // These belong to the engine's thread.
  std::deque<SharedJob> waiting_;
  std::vector<SharedJob> active_;
  std::vector<SharedJob> left_;  // scored with echo for clients that have left, for when they ask again
  std::shared_ptr<Workspace> workspace_ = std::make_shared<Workspace>();  // of all sessions, which take turns
  std::map<std::string, ContextStamp> opened_;  // saved contexts, as their files were before that
  std::size_t next_reader_ = 0;
  std::string device_lost_;                  // how, once it is
  const std::vector<SharedMethod> methods_;  // that sessions decode and draft by
  SessionPool pool_{methods_};
  SavedPrompts saved_;
  ReadHistory history_;
  EngineFigures own_;

  std::thread thread_;  // the last to be made, the first to end
};

}  // namespace hayloft::runtime::serve
