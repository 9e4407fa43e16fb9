#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "gpu/make_backend.h"
#include "offload/error.h"
#include "runtime/context/ingest.h"
#include "runtime/eval/needle/haystack.h"
#include "tests/program/program.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/parameter_name.h"
#include "tests/support/temporary_folder.h"

// The whole program, killed at random moments of a fresh ingest and of an append. After every kill the file, if there
// is one, must hold what reading the text in one go holds at a chunk boundary, and no less than before; run again,
// killed again or not, it must end in the same context bit for bit. Moments are drawn over the time that the work takes
// when nothing comes between, which is measured and not judged: mostly from the first byte written on, sometimes from
// the start of the program.
namespace hayloft {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using offload::Snapshot;
using runtime::Session;
using test::Outcome;
using test::Program;
using test::run_program;

const fs::path needle_model = fs::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";
constexpr int wanted_kills = 200;  // of living processes, in each of the two tests
constexpr int chunk = 48;          // tokens
constexpr std::uint64_t seed = 20;

// A text as it should come out: its tokens, and its digest after every whole chunk and at its end.
class Expected {
 public:
  Expected(const runtime::Model& model, offload::Arena& arena, std::vector<std::int32_t> ids) : tokens(std::move(ids)) {
    runtime::SessionOptions options;
    options.cache.block_tokens = 16;
    options.chunk_tokens = chunk;
    Session session(model, arena, options);
    for (std::size_t done = 0; done + chunk <= tokens.size(); done += chunk) {
      session.append(std::span(tokens).subspan(done, chunk));
      digests[done + chunk] = digest(session, done + chunk);
    }
    digests[tokens.size()] = digest(session, tokens.size());
  }

  // Returns what is wrong with a context that should hold a beginning of this text; empty when nothing is.
  std::string fault(const Snapshot& snapshot) const {
    snapshot.verify();
    const std::vector<std::int32_t> ids = snapshot.tokens();
    if (ids.empty()) return snapshot.cached_tokens() == 0 ? "" : "keys and values of no tokens";
    if (ids.size() > tokens.size() || !std::equal(ids.begin(), ids.end(), tokens.begin())) return "other tokens";
    const auto known = digests.find(ids.size());
    if (known == digests.end()) return fmt::format("{} tokens, in the middle of a chunk", ids.size());
    if (snapshot.content_digest() != known->second) return fmt::format("other content at {} tokens", ids.size());
    for (const std::int64_t earlier : snapshot.earlier_checkpoints()) {
      if (std::string wrong = fault(*snapshot.back_to(earlier)); !wrong.empty()) return "earlier: " + wrong;
    }
    return "";
  }

  const std::string& final_digest() const { return digests.rbegin()->second; }

  std::vector<std::int32_t> tokens;
  std::map<std::size_t, std::string> digests;

 private:
  std::string digest(const Session& session, std::size_t count) const {
    const std::vector<offload::SnapshotTail> tails = session.cache().tails();
    std::vector<offload::TailImage> images;
    for (const auto& tail : tails) images.push_back(tail.image());
    std::vector<offload::LayerView> layers;
    for (int i = 0; i < session.cache().store().shape().layers; ++i) layers.push_back(session.cache().store().layer(i));
    return offload::content_digest(std::span(tokens).first(count), layers, images);
  }
};

// Runs with the bundled model, or with one that has recurrent layers.
class KilledIngest : public ::testing::TestWithParam<const char*> {
 protected:
  KilledIngest()
      : model_path(GetParam() == std::string("hybrid") ? test::write_hybrid_model(folder / "hybrid") : needle_model) {
    const auto grammar = runtime::eval::make_grammar(3);
    for (int i = 0; i < 260; ++i) text += grammar->next() + " ";
  }

  // The program's checkpoints come after every chunk, and a chunk fills blocks.
  std::vector<std::string> tiny(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"-m", model_path.string(), "--batch", std::to_string(chunk), "--block-tokens",
                                       "16", "--checkpoint-seconds", "0", "--threads", "2"});
    return arguments;
  }

  // The first sentences, up to about `bytes` bytes.
  std::string beginning(std::size_t bytes) const { return text.substr(0, text.find(". ", bytes) + 1); }

  std::int64_t cached(const fs::path& path) const {
    return fs::exists(path) ? Snapshot::open(path, Snapshot::Accept::unfinished).cached_tokens() : 0;
  }

  // The time that a run takes that nothing disturbs.
  struct Usual {
    Clock::duration start{};    // until it changes a file
    Clock::duration writing{};  // from then to its end
  };

  struct Case {
    std::vector<std::string> arguments;
    Expected expected;
    Usual usual;
  };

  // Returns what tells that a file has been changed: a time of the last write that it did not have before.
  static std::optional<fs::file_time_type> written(const fs::path& path) {
    std::error_code none;
    const fs::file_time_type time = fs::last_write_time(path, none);
    return none ? std::nullopt : std::optional(time);
  }

  // Returns when `program` has changed the file, or has ended.
  static void wait_for_a_change(const Program& program, const fs::path& path,
                                const std::optional<fs::file_time_type>& before) {
    while (written(path) == before && program.running()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  Usual usual_run(const std::vector<std::string>& arguments, const fs::path& growing) {
    Usual usual;
    const auto before = written(growing);
    const Clock::time_point start = Clock::now();
    Program program(arguments);
    wait_for_a_change(program, growing, before);
    usual.start = Clock::now() - start;
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    usual.writing = Clock::now() - start - usual.start;
    return usual;
  }

  Clock::duration drawn(Clock::duration most) { return most * static_cast<std::int64_t>(random() % 1000) / 1000; }

  // Runs the program on `growing` until `finished` is, killing it on the way as often as the draw has it.
  void run_to_the_end(const Case& run, const fs::path& growing, const fs::path& finished) {
    const Expected& expected = run.expected;
    std::int64_t kept = cached(growing);
    for (int attempt = 0;; ++attempt) {
      ASSERT_LT(attempt, 1000) << "it never ends";
      const auto before = written(growing);
      Program program(run.arguments);
      if (random() % 8 == 0) {
        std::this_thread::sleep_for(drawn(run.usual.start));
      } else {
        wait_for_a_change(program, growing, before);
        std::this_thread::sleep_for(drawn(run.usual.writing));
      }
      kept = std::max(kept, seen_in_passing(growing));
      const Outcome outcome = program.kill();
      if (outcome.signal != SIGKILL) {
        ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
        break;
      }
      ++kills;
      const fs::path& now = fs::exists(growing) ? growing : finished;
      if (!fs::exists(now)) {
        ASSERT_EQ(kept, 0) << "what was saved is gone";
        continue;
      }
      const Snapshot snapshot = Snapshot::open(now, Snapshot::Accept::unfinished);
      ASSERT_EQ(expected.fault(snapshot), "") << "after kill " << kills;
      ASSERT_GE(snapshot.cached_tokens(), kept) << "after kill " << kills;
      kept = snapshot.cached_tokens();
      if (kept > 0 && !snapshot.complete()) ++halfway;
      // Killed between completing the file and ending: there is nothing left to do.
      if (now == finished && snapshot.complete() && snapshot.content_digest() == expected.final_digest()) break;
    }
    const Snapshot snapshot = Snapshot::open(finished);
    ASSERT_EQ(expected.fault(snapshot), "");
    ASSERT_EQ(snapshot.content_digest(), expected.final_digest());
  }

  void report(const char* what) {
    RecordProperty("kills", kills);
    fmt::print("{} kills of a living {}, {} of them with a part of it saved; seed {}\n", kills, what, halfway, seed);
  }

  // As a reader may find the file while it is written: its last checkpoint, unless it was renamed meanwhile.
  std::int64_t seen_in_passing(const fs::path& path) const {
    try {
      return Snapshot::open(path, Snapshot::Accept::unfinished).cached_tokens();
    } catch (const Error&) {
      return 0;
    }
  }

  test::TemporaryFolder folder;
  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 256 << 20}};
  const fs::path model_path;
  runtime::Tokenizer tokenizer{model_path};
  runtime::Model model{model_path, *backend};
  std::string text;
  std::mt19937_64 random{seed};
  int kills = 0;
  int halfway = 0;  // of the kills: with something saved and not all of it
};

// Short texts, where starting and finishing are most of the work, and a longer one of many checkpoints.
constexpr std::size_t lengths[] = {300, 2000, 9000};

TEST_P(KilledIngest, KeepsWholeChunksAndEndsAsIfItHadNeverBeenKilled) {
  const fs::path path = folder / "killed.hay";
  const fs::path part = folder / "killed.hay.part";
  std::vector<Case> cases;
  for (const std::size_t length : lengths) {
    const std::string words = beginning(length);
    const fs::path file = folder.write(std::to_string(length), words);
    const auto arguments = tiny({"ingest", "-f", file, "--save", path});
    cases.push_back({arguments, {model, arena, tokenizer.encode(words)}, usual_run(arguments, part)});
    fs::remove(path);
  }
  for (int round = 0; kills < wanted_kills; ++round) {
    ASSERT_LT(round, 10 * wanted_kills);
    const Case& now = cases[static_cast<std::size_t>(round) % cases.size()];
    run_to_the_end(now, part, path);
    if (HasFatalFailure()) return;
    EXPECT_FALSE(fs::exists(part));
    fs::remove(path);
  }
  report("ingest");
}

TEST_P(KilledIngest, AppendingKeepsTheContextAndWholeChunksToo) {
  const fs::path path = folder / "killed.hay";
  const fs::path base = folder / "base.hay";
  const std::string begun = beginning(1000);
  const Outcome made = run_program(tiny({"ingest", "-f", folder.write("begun", begun), "--save", base}));
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Expected before(model, arena, tokenizer.encode(begun));
  std::vector<Case> cases;
  for (const std::size_t length : lengths) {
    const std::string all = beginning(begun.size() + length);
    const fs::path more = folder.write(std::to_string(length), all.substr(begun.size()));
    const auto arguments = tiny({"ingest", "--append", path, "-f", more});
    Expected expected(model, arena, tokenizer.encode(all));
    expected.digests[before.tokens.size()] = before.final_digest();
    fs::copy_file(base, path, fs::copy_options::overwrite_existing);
    cases.push_back({arguments, std::move(expected), usual_run(arguments, path)});
  }
  for (int round = 0; kills < wanted_kills; ++round) {
    ASSERT_LT(round, 10 * wanted_kills);
    fs::copy_file(base, path, fs::copy_options::overwrite_existing);
    const Case& now = cases[static_cast<std::size_t>(round) % cases.size()];
    run_to_the_end(now, path, path);
    if (HasFatalFailure()) return;
  }
  report("append");
}

INSTANTIATE_TEST_SUITE_P(Of, KilledIngest, ::testing::Values("needle", "hybrid"), test::by_value);

}  // namespace
}  // namespace hayloft
