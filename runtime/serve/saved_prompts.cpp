#include "runtime/serve/saved_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "offload/error.h"
#include "runtime/context/reading_note.h"
#include "runtime/serve/session_pool.h"

namespace hayloft::runtime::serve {
namespace {

bool begins_with(std::span<const std::int32_t> prompt, std::span<const std::int32_t> tokens) {
  return common_prefix(prompt, tokens) == tokens.size();
}

}  // namespace

struct SavedPrompts::File {
  std::filesystem::path path;
  std::size_t whole = 0;      // tokens of the prompt that will be saved
  Clock::time_point written;  // when a checkpoint was handed over last

  // Under the mutex.
  std::vector<std::int32_t> tokens;   // of the last checkpoint; empty: not to be used
  std::vector<std::int64_t> earlier;  // tokens of the checkpoints before that are kept
  std::uint64_t bytes = 0;
  std::uint64_t last_use = 0;
  bool complete = false;  // its prompt was read to the last whole chunk
  bool busy = false;      // a prompt is being read into it
  bool pending = false;   // a checkpoint has been handed over and is not written
  bool failed = false;

  // The writing thread alone uses these.
  std::optional<offload::SnapshotWriter> writer;
  ApproximateTokens approximate;  // in the file, whoever decoded them
};

SavedPrompts::SavedPrompts(const ModelSource& source, offload::Arena& arena, SessionOptions session,
                           SharedMethod method, SavedPromptOptions options)
    : source_(source),
      arena_(arena),
      session_(std::move(session)),
      method_(std::move(method)),
      options_(std::move(options)) {
  if (!available()) return;
  load();
  thread_ = std::thread([this] { run(); });
}

SavedPrompts::~SavedPrompts() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool SavedPrompts::available() const {
  return !options_.directory.empty() && options_.most_bytes > 0 && method_->state_key().empty();
}

// From what was decoded approximately only where its own tokens are as well.
bool SavedPrompts::goes_on(const offload::SnapshotDescription& saved) const {
  if (saved.shape != own_.shape) return false;
  if (saved.note == own_.note) return true;
  ReadingNote note = read_note(saved.note, "a saved prompt");
  note.approximate = {};
  return method_->options().name != "dense" && write_note(note) == own_.note;
}

// Loads what earlier servers left, in the order of its use. Files of other models and damaged ones count, and go in
// their turn.
void SavedPrompts::load() {
  std::error_code error;
  own_ = describe_context(source_, session_);
  std::vector<std::pair<std::filesystem::file_time_type, Handle>> found;
  for (const auto& each : std::filesystem::directory_iterator(options_.directory, error)) {
    if (each.path().extension() != ".hay") continue;
    auto file = std::make_shared<File>();
    file->path = each.path();
    file->bytes = each.file_size(error);
    int number = 0;
    const std::string stem = each.path().stem().string();
    std::from_chars(stem.data(), stem.data() + stem.size(), number);
    next_name_ = std::max(next_name_, number + 1);
    try {
      const offload::Snapshot snapshot = offload::Snapshot::open(file->path, offload::Snapshot::Accept::unfinished);
      snapshot.require_model(own_.model);
      if (goes_on(snapshot.description()) && snapshot.cached_tokens() == snapshot.token_count()) {
        file->tokens = snapshot.tokens();
        file->earlier = snapshot.earlier_checkpoints();
        file->complete = snapshot.complete();
      }
    } catch (const Error&) {
    }
    found.emplace_back(each.last_write_time(error), std::move(file));
  }
  std::ranges::sort(found, {}, [](const auto& each) { return each.first; });
  for (auto& [time, file] : found) {
    file->last_use = ++uses_;
    files_.push_back(std::move(file));
  }
}

SavedPrompts::Found SavedPrompts::find(std::span<const std::int32_t> prompt) const {
  Found best;
  const auto consider = [&](const Handle& file, std::size_t tokens) {
    if (tokens > best.tokens && tokens < prompt.size()) best = {file, tokens};
  };
  for (const Handle& file : files_) {
    if (file->busy || file->tokens.empty()) continue;
    const std::size_t same = common_prefix(file->tokens, prompt);
    if (same == file->tokens.size()) consider(file, same);
    for (const std::int64_t tokens : file->earlier) {
      if (static_cast<std::size_t>(tokens) <= same) consider(file, static_cast<std::size_t>(tokens));
    }
  }
  return best;
}

std::size_t SavedPrompts::longest(std::span<const std::int32_t> prompt) const {
  const std::lock_guard lock(mutex_);
  return find(prompt).tokens;
}

std::optional<Session> SavedPrompts::open(std::span<const std::int32_t> prompt) {
  const std::lock_guard lock(mutex_);
  const auto [file, tokens] = find(prompt);
  if (!file) return std::nullopt;
  file->last_use = ++uses_;
  try {
    const offload::Snapshot whole = offload::Snapshot::open(file->path, offload::Snapshot::Accept::unfinished);
    const std::optional<offload::Snapshot> snapshot = whole.back_to(static_cast<std::int64_t>(tokens));
    if (!snapshot || !goes_on(snapshot->description()) || !begins_with(prompt, snapshot->tokens())) {
      fail("{}: has been written to", file->path.string());
    }
    Session session = open_context(source_, arena_, *snapshot, session_, method_.get());
    session.set_method(method_);
    std::error_code ignored;
    std::filesystem::last_write_time(file->path, std::filesystem::file_time_type::clock::now(), ignored);
    return session;
  } catch (const Error&) {
    ++failures_;
    file->tokens.clear();
    return std::nullopt;
  }
}

SavedPrompts::Handle SavedPrompts::begin(std::span<const std::int32_t> prompt, std::size_t read) {
  const auto chunk = static_cast<std::size_t>(session_.chunk_tokens);
  const std::size_t whole = prompt.empty() ? 0 : (prompt.size() - 1) / chunk * chunk;
  if (!available() || whole < options_.least_tokens || whole <= read || read % chunk != 0) return nullptr;
  const ModelConfig& config = source_.model.config();
  const auto tokens = static_cast<std::int64_t>(whole);
  const std::uint64_t bytes =
      host_bytes(config, session_.cache, tokens) + tail_bytes(config, session_.cache, tokens, session_.chunk_tokens);
  if (bytes > options_.most_bytes) return nullptr;
  const std::lock_guard lock(mutex_);
  const Found found = find(prompt);
  Handle file = found.file;
  if (file && found.tokens < file->tokens.size()) file = nullptr;  // this prompt is another, and has a file of its own
  if (file && file->complete && whole < file->tokens.size() + options_.least_tokens) return nullptr;  // saved already
  if (!file || file->complete || file->tokens.size() > read) {  // what was interrupted goes on in its file
    file = std::make_shared<File>();
    files_.push_back(file);
  }
  file->busy = true;
  file->whole = whole;
  file->written = Clock::now();
  return file;
}

void SavedPrompts::advance(Handle& file, const Session& session, std::span<const std::int32_t> read, bool now) {
  if (!file) return;
  const bool complete = read.size() >= file->whole;
  {
    const std::lock_guard lock(mutex_);
    if (file->failed) return file.reset();
    const bool due = seconds_since(file->written) >= options_.checkpoint_seconds && !file->pending;
    if (!complete && !now && !due) return;
    file->pending = true;
  }
  file->written = Clock::now();
  try {
    hand_over({file, session.fork(), {read.begin(), read.end()}, complete});
  } catch (const Error&) {  // no memory for a fork
    release(file);
  }
  if (complete) file.reset();
}

void SavedPrompts::release(Handle& file) {
  if (!file) return;
  hand_over({std::move(file), std::nullopt, {}, false});
  file.reset();
}

void SavedPrompts::hand_over(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_all();
}

void SavedPrompts::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return (tasks_.empty() && !writing_) || !thread_.joinable(); });
}

SavedPrompts::Figures SavedPrompts::figures() const {
  const std::lock_guard lock(mutex_);
  Figures figures{static_cast<int>(files_.size()), 0, failures_};
  for (const Handle& file : files_) figures.bytes += file->bytes;
  return figures;
}

void SavedPrompts::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      writing_ = true;
      lock.unlock();
      write(task);
    }
    lock.lock();
    writing_ = false;
    if (tasks_.empty()) idle_.notify_all();
  }
}

// Another server may take the same name at the same time.
offload::SnapshotWriter SavedPrompts::create(File& file) {
  constexpr int most_tries = 8;
  const std::lock_guard lock(mutex_);
  for (int tries = 1;; ++tries) {
    std::error_code ignored;
    do {
      file.path = options_.directory / fmt::format("{:06}.hay", next_name_++);
    } while (std::filesystem::exists(file.path, ignored));
    try {
      return offload::SnapshotWriter::create(file.path, own_);
    } catch (const Error&) {
      if (tries == most_tries) throw;
    }
  }
}

void SavedPrompts::write(Task& task) {
  File& file = *task.file;
  bool failed = false;
  // Says that the file is this server's: another may write to it, or have put its own in this place.
  bool own = file.writer.has_value();
  if (task.session) {
    try {
      if (!file.writer && file.tokens.empty()) {
        std::filesystem::create_directories(options_.directory);
        file.writer = create(file);
      } else if (!file.writer) {
        file.writer = offload::SnapshotWriter::open_to_append(file.path);
        if (file.writer->snapshot().tokens() != file.tokens) fail("{}: has been written to", file.path.string());
        file.approximate = read_note(file.writer->snapshot().description().note, file.path.string()).approximate;
      }
      own = true;
      file.writer->keep(kept_checkpoints(source_.model.config(), options_.checkpoints));
      ReadingNote note = read_note(own_.note, file.path.string());
      note.approximate = file.approximate;
      note.approximate.add(task.session->approximate_tokens());
      file.approximate = note.approximate;
      file.writer->set_note(write_note(note));
      save_checkpoint(*file.writer, *task.session, task.tokens, {}, task.complete);
    } catch (const std::exception&) {
      failed = true;
    }
  }
  const bool ends = failed || task.complete || !task.session;
  const std::uint64_t bytes = file.writer ? file.writer->file_bytes() : 0;
  const std::vector<std::int64_t> earlier =
      file.writer ? file.writer->snapshot().earlier_checkpoints() : std::vector<std::int64_t>();
  if (ends) file.writer.reset();

  const std::lock_guard lock(mutex_);
  file.pending = false;
  if (ends) file.busy = false;
  if (task.session && !failed) {
    file.tokens = std::move(task.tokens);
    file.earlier = earlier;
    file.bytes = bytes;
    file.complete = task.complete;
    file.last_use = ++uses_;
    make_room(file);
  }
  if (failed || (ends && file.tokens.empty())) {  // what an earlier checkpoint holds would stay good, but not the disk
    failures_ += failed ? 1 : 0;
    file.failed = true;
    std::error_code ignored;
    if (own) std::filesystem::remove(file.path, ignored);
    files_.remove(task.file);
  }
}

void SavedPrompts::make_room(const File& newest) {
  const auto total = [&] {
    return std::accumulate(files_.begin(), files_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Handle& file) { return sum + file->bytes; });
  };
  while (total() > options_.most_bytes) {
    auto oldest = files_.end();
    for (auto at = files_.begin(); at != files_.end(); ++at) {
      const bool spared = (*at)->busy || at->get() == &newest;
      if (!spared && (oldest == files_.end() || (*at)->last_use < (*oldest)->last_use)) oldest = at;
    }
    if (oldest == files_.end()) return;
    std::error_code ignored;
    std::filesystem::remove((*oldest)->path, ignored);  // sessions that were opened from it keep its blocks
    files_.erase(oldest);
  }
}

}  // namespace hayloft::runtime::serve
