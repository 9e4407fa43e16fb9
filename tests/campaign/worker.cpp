// campaign_worker kills|damage|models FIRST-SEED CASES FOLDER f16|int8|int4: many cases in one process, of contexts
// with such rows, for scripts/campaign, which preloads tests/campaign/faults.c. The seed of the case that runs is kept
// in FOLDER/seed. Prints what was counted as JSON; the exit status is 1, with a line that names the seed, when a case
// failed.
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "offload/clock.h"
#include "offload/error.h"
#include "runtime/context/ingest.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/eval/needle/haystack.h"

namespace hayloft {
namespace {

namespace fs = std::filesystem;
using offload::Snapshot;
using Random = std::mt19937_64;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

int drawn(Random& random, int below) {
  return static_cast<int>(random() % static_cast<std::uint64_t>(below));
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// One to four places overwritten, zeroed, copied over, cut off or put on; more often than not near the beginning.
void damage(std::string& data, Random& random) {
  for (int changes = drawn(random, 4) == 0 ? 4 : 1; changes > 0 && !data.empty(); --changes) {
    const std::size_t near = std::min<std::size_t>(data.size(), 16384);
    const std::size_t at = random() % (drawn(random, 2) == 0 ? data.size() : near);
    constexpr std::size_t lengths[] = {1, 1, 8, 64, 4096};
    const std::size_t length = std::min(data.size() - at, lengths[drawn(random, 5)]);
    switch (drawn(random, 6)) {
      case 0:
        data[at] = static_cast<char>(data[at] ^ (1 << drawn(random, 8)));
        break;
      case 1:
        for (std::size_t i = 0; i < length; ++i) data[at + i] = static_cast<char>(random());
        break;
      case 2:
        std::fill_n(data.begin() + static_cast<std::ptrdiff_t>(at), length, '\0');
        break;
      case 3:
        data.resize(at);
        break;
      case 4:
        std::copy_n(std::string(data, 0, length).begin(), length, data.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      default:
        for (std::size_t i = 0; i < length; ++i) data += static_cast<char>(random());
    }
  }
}

class Worker {
 public:
  Worker(fs::path folder, offload::RowFormat rows) : folder_(std::move(folder)) {
    options_.session.cache.rows = rows;
    if (rows != offload::RowFormat::f16) options_.session.cache.columns = offload::ColumnFormat::int4;
    options_.session.cache.block_tokens = 16;
    options_.session.cache.window = 16;
    options_.session.chunk_tokens = 32;
    options_.checkpoint_seconds = 0;
    const auto grammar = runtime::eval::make_grammar(3);
    for (int i = 0; i < 24; ++i) (i < 14 ? first_ : second_) += (i == 14 ? "" : " ") + grammar->next();
    second_.insert(0, " ");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    const Clock::time_point start = Clock::now();
    runtime::ingest(source_, arena_, first_, at("c.hay"), options_);
    old_ = bytes_of(at("c.hay"));
    old_digest_ = digest("c.hay");
    runtime::append_to(source_, arena_, second_, at("c.hay"), options_);
    usual_us_ = static_cast<int>(seconds_since(start) / 2 * 1e6);
    new_digest_ = digest("c.hay");
  }

  void kills(Random& random) {
    clear();
    const bool appending = drawn(random, 2) == 0;
    if (appending) write_bytes(at("c.hay"), old_);
    const auto work = [&] {
      if (appending) {
        runtime::append_to(source_, arena_, second_, at("c.hay"), options_);
      } else {
        runtime::ingest(source_, arena_, first_, at("c.hay"), options_);
      }
    };
    const std::string& expected = appending ? new_digest_ : old_digest_;
    std::int64_t kept = 0;
    for (int turns = 1 + drawn(random, 3); turns > 0; --turns) {
      if (!killed(work, random)) break;
      ++counts_kills;
      const fs::path there = fs::exists(at("c.hay")) ? at("c.hay") : at("c.hay.part");
      if (!fs::exists(there)) {
        if (kept > 0 || appending) throw Failure("what was saved is gone");
        continue;
      }
      const Snapshot snapshot = Snapshot::open(there, Snapshot::Accept::unfinished);
      snapshot.verify();
      if (snapshot.cached_tokens() < kept) throw Failure("less is saved than before");
      kept = snapshot.cached_tokens();
      if (snapshot.complete() && there == at("c.hay")) {
        const std::string now = snapshot.content_digest();
        if (now != expected && !(appending && now == old_digest_)) throw Failure("the context is neither old nor new");
        if (!appending) break;
      }
    }
    if (appending || !fs::exists(at("c.hay"))) work();
    if (digest("c.hay") != expected) throw Failure("run again it does not end in the same context");
    if (appending) {
      work();
      if (digest("c.hay") != expected) throw Failure("the text was appended twice");
    }
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      if (appending && name != "c.hay" && name != "seed") throw Failure(name + " is left behind");
    }
  }

  void damage_context(Random& random) {
    clear();
    std::string bytes = old_;
    damage(bytes, random);
    write_bytes(at("c.hay"), bytes);
    ++counts_damage;
    try {
      const Snapshot snapshot = Snapshot::open(at("c.hay"));
      read_behind(snapshot);  // with whatever it holds, before anything is verified
      snapshot.verify();
      if (snapshot.content_digest() != old_digest_) throw Failure("a damaged context is taken for a sound one");
      ++counts_sound;
    } catch (const Error&) {
      ++counts_refused;
    }
  }

  void damage_model(Random& random) {
    clear();
    const fs::path model = at("model");
    fs::copy(source_.directory, model, fs::copy_options::recursive);
    constexpr const char* files[] = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"};
    const fs::path file = model / files[drawn(random, 4)];
    std::string bytes = bytes_of(file);
    damage(bytes, random);
    write_bytes(file, bytes);
    ++counts_models;
    try {
      const runtime::Tokenizer tokenizer = runtime::load_tokenizer(model);
      const runtime::Model damaged(model, *backend_);
      runtime::Session session(damaged, arena_, options_.session);
      const std::vector<std::int32_t> tokens = tokenizer.encode("one two three");
      if (!tokens.empty()) session.append(tokens);
      ++counts_sound;
    } catch (const Error&) {
      ++counts_refused;
    }
  }

  long counts_kills = 0, counts_damage = 0, counts_models = 0, counts_refused = 0, counts_sound = 0;

 private:
  fs::path at(const char* name) const { return folder_ / name; }

  std::string digest(const char* name) const {
    const Snapshot snapshot = Snapshot::open(at(name));
    snapshot.verify();
    return snapshot.content_digest();
  }

  // Everything but the seed.
  void clear() const {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().filename() != "seed") fs::remove_all(entry.path());
    }
  }

  void read_behind(const Snapshot& snapshot) {
    runtime::Session session = runtime::open_context(source_, arena_, snapshot, {});
    session.append(tokenizer_.encode(" What is it?", false));
  }

  // In a process of its own, which is ended after a random time or at a random system call. False: it came to its end.
  template <class Work>
  bool killed(const Work& work, Random& random) const {
    static auto* const restart = reinterpret_cast<void (*)()>(::dlsym(RTLD_DEFAULT, "hayloft_faults_restart"));
    const bool at_call = restart != nullptr && drawn(random, 3) > 0;
    const int call = 1 + drawn(random, 60);
    const bool half = drawn(random, 2) == 0;
    const int wait_us = drawn(random, usual_us_ + usual_us_ / 4);
    const pid_t child = ::fork();
    if (child < 0) throw Failure("no process can be started");
    if (child == 0) {
      if (at_call) {
        ::setenv("HAYLOFT_FAULTS_FOLDER", folder_.c_str(), 1);
        ::setenv("HAYLOFT_FAULTS_KILL_AT", std::to_string(call).c_str(), 1);
        if (half) ::setenv("HAYLOFT_FAULTS_HALF", "1", 1);
        restart();
      }
      try {
        work();
        ::_exit(0);
      } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        ::_exit(3);
      }
    }
    if (!at_call) {
      ::usleep(static_cast<useconds_t>(wait_us));
      ::kill(child, SIGKILL);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return true;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw Failure(fmt::format("ended with status {}", status));
    return false;
  }

  fs::path folder_;
  offload::Topology topology_;
  offload::Threads threads_{1};
  std::unique_ptr<gpu::Backend> backend_ = gpu::make_cpu_backend(threads_);
  offload::Arena arena_{topology_, {.budget_bytes = 64 << 20}};
  const fs::path needle_model_ = fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
  runtime::Tokenizer tokenizer_{needle_model_};
  runtime::Model model_{needle_model_, *backend_};
  runtime::ModelSource source_{model_, tokenizer_, needle_model_};
  runtime::IngestOptions options_;
  std::string first_, second_, old_, old_digest_, new_digest_;
  int usual_us_ = 0;
};

int run(const std::string& what, std::uint64_t seed, long cases, const fs::path& folder, offload::RowFormat rows) {
  Worker worker(folder, rows);
  int status = 0;
  for (const std::uint64_t end = seed + static_cast<std::uint64_t>(cases); seed < end; ++seed) {
    std::ofstream(folder / "seed") << seed;
    Random random(seed);
    try {
      if (what == "kills") worker.kills(random);
      if (what == "damage") worker.damage_context(random);
      if (what == "models") worker.damage_model(random);
    } catch (const std::exception& error) {
      fmt::print(stderr, "FAILED: {}, seed {}: {}\n", what, seed, error.what());
      status = 1;
      break;
    }
  }
  fmt::print("{{\"kills\": {}, \"damaged contexts\": {}, \"damaged models\": {}, \"refused\": {}, \"sound\": {}}}\n",
             worker.counts_kills, worker.counts_damage, worker.counts_models, worker.counts_refused,
             worker.counts_sound);
  return status;
}

}  // namespace
}  // namespace hayloft

int main(int count, char** arguments) {
  using hayloft::offload::RowFormat;
  if (count != 6) return 2;
  for (const RowFormat rows : {RowFormat::f16, RowFormat::int8, RowFormat::int4}) {
    if (name(rows) != std::string(arguments[5])) continue;
    return hayloft::run(arguments[1], std::strtoull(arguments[2], nullptr, 10), std::atol(arguments[3]), arguments[4],
                        rows);
  }
  return 2;
}
