// Limits: of threads, of what is read, of what is computed. Each ends in one line, before the memory or the patience of
// anybody does.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "offload/host/topology.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/program/program.h"

namespace hayloft::test {
namespace {

namespace fs = std::filesystem;

class LimitsTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  // One query head, one KV head, four positions.
  std::string tensors(float q, float k) const {
    std::vector<float> query(16, q), keys(64), values(64, 1.0f);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i % 3 == 0 ? k : -k;
    const auto bytes = [](const std::vector<float>& v) { return std::as_bytes(std::span(v)); };
    const std::vector<runtime::TensorToWrite> tensors{{"q", "F32", {1, 1, 16}, bytes(query)},
                                                      {"k", "F32", {1, 4, 16}, bytes(keys)},
                                                      {"v", "F32", {1, 4, 16}, bytes(values)}};
    runtime::write_safetensors(at("in"), tensors);
    return at("in");
  }

  TemporaryFolder folder_;
};

const std::string bundled = std::string(HAYLOFT_SOURCE_DIR) + "/examples/needle-model/model";

TEST_F(LimitsTest, NoMoreThreadsThanProcessorsUnlessInsistedUpon) {
  const std::vector<std::string> needle{"needle", "-c", "512", "--depths", "1", "--attn", "dense", "-t", "700"};
  const Outcome clamped = run_program(needle);
  EXPECT_EQ(clamped.exit_code, 0) << clamped.err;
  EXPECT_NE(clamped.err.find("note: --threads 700: this process may use " +
                             std::to_string(offload::usable_processors()) + " processor"),
            std::string::npos)
      << clamped.err;
  std::vector<std::string> insisted = needle;
  insisted.back() = std::to_string(offload::usable_processors() + 1);
  insisted.push_back("--oversubscribe");
  const Outcome more = run_program(insisted);
  EXPECT_EQ(more.exit_code, 0) << more.err;
  EXPECT_EQ(more.err.find("--threads"), std::string::npos) << more.err;
}

// OpenBLAS was made for so many threads, and beyond them marks what it gives back at a wrong place: from some 500 on it
// wrote over the heap.
TEST_F(LimitsTest, AnyNumberOfThreadsGivesTheSameAnswer) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "The grass is green. The sky is blue. The sun is yellow. Here we go. ";
  const std::string file = folder_.write("hay.txt", text);
  const auto generated = [&](int threads) {
    const Outcome outcome = run_program({"generate", "-m", bundled, "-f", file, "-n", "4", "--temp", "0", "-t",
                                         std::to_string(threads), "--oversubscribe"});
    EXPECT_EQ(outcome.exit_code, 0) << threads << ": " << outcome.err;
    EXPECT_EQ(outcome.err.find("OpenBLAS"), std::string::npos) << outcome.err;
    return outcome.out;
  };
  const std::string one = generated(1);
  for (const int threads : {64, 65, 128, 129, 513, 1024}) EXPECT_EQ(generated(threads), one) << threads;
  for (const char* method : {"dense", "ann"}) {
    const Outcome needle =
        run_program({"needle", "-c", "2k", "--depths", "2", "--attn", method, "-t", "600", "--oversubscribe"});
    EXPECT_EQ(needle.exit_code, 0) << needle.err;
  }
  const Outcome ingest =
      run_program({"ingest", "-f", file, "--save", at("h.hay"), "--index", "ann", "-t", "600", "--oversubscribe"});
  EXPECT_EQ(ingest.exit_code, 0) << ingest.err;
}

// Root may start as many threads as it likes, so the program runs as nobody, from copies in a folder that nobody may
// enter.
TEST_F(LimitsTest, TooFewProcessesAllowedIsOneLineThatNamesTheLimit) {
  if (::getuid() != 0) GTEST_SKIP() << "another user is needed";
  const fs::path program = fs::path(HAYLOFT_PROGRAM);
  fs::permissions(folder_.path(), fs::perms::others_read | fs::perms::others_exec, fs::perm_options::add);
  fs::copy_file(program, at("hayloft"));
  fs::copy(bundled, at("model"), fs::copy_options::recursive);
  const std::string as_nobody = "exec setpriv --reuid=65534 --regid=65534 --clear-groups prlimit --nproc=1:1 " +
                                at("hayloft") + " needle -c 512 --depths 1 --attn dense -t 3 --oversubscribe -m " +
                                at("model") + "; :";
  const Outcome outcome = run_program({"--version"}, as_nobody);
  EXPECT_TRUE(refused_with(outcome, 1, {"--threads 3", "ulimit -u"}));
}

TEST_F(LimitsTest, AFactoryStringIsShort) {
  const std::string longest = "ann:" + std::string(30000, '(');
  const std::vector<std::string> parts{"--attn ann", "30000 characters", "at most"};
  EXPECT_TRUE(refused_with(run_program({"needle", "-c", "512", "--attn", longest}), 1, parts));
  EXPECT_TRUE(refused_with(run_program({"bench", "--shape", "1,1,1,32", "--attn", longest}), 2, parts));
  EXPECT_TRUE(refused_with(run_program({"needle", "-c", "512", "--attn", "ann:IVF900000000,Flat"}), 1,
                           {"--attn ann", "too large"}));
}

TEST_F(LimitsTest, AnIndexIsDescribedInFewCharacters) {
  const std::string text = folder_.write("hay.txt", "Hay and straw and a needle.");
  const std::string longest = "ann:" + std::string(30000, 'I');
  EXPECT_TRUE(refused_with(run_program({"ingest", "-f", text, "--save", at("h.hay"), "--index", longest}), 1,
                           {"30000 characters"}));
  ASSERT_EQ(run_program({"ingest", "-f", text, "--save", at("h.hay")}).exit_code, 0);
  EXPECT_TRUE(refused_with(run_program({"index", at("h.hay"), "--index", longest}), 1, {"30000 characters"}));
}

TEST_F(LimitsTest, FilesWithoutAnEndAreRefused) {
  const Outcome read = run_program({"generate", "-m", bundled, "-f", "/dev/zero"});
  EXPECT_TRUE(refused_with(read, 1, {"--file /dev/zero", "device"}));
  EXPECT_TRUE(refused_with(run_program({"ingest", "-f", "/dev/urandom", "--save", at("h.hay")}), 1, {"/dev/urandom"}));
  const Outcome needle = run_program({"needle", "-c", "512", "--haystack", "/dev/zero"});
  EXPECT_EQ(needle.exit_code, 1);
  EXPECT_NE(needle.err.find("hayloft: --haystack /dev/zero: this is a device"), std::string::npos) << needle.err;
  for (const char* out : {"/dev/full", "/dev/zero"}) {
    EXPECT_TRUE(refused_with(run_program({"eval", "-c", "512", "--samples", "1", "--out", out}), 1,
                             {std::string("--out ") + out, "no regular file"}));
  }
  for (const char* option : {"--jsonl", "--squad", "--text"}) {
    EXPECT_TRUE(refused_with(run_program({"eval", "-c", "512", "--samples", "1", option, "/dev/zero"}), 1,
                             {option, "/dev/zero", "device"}));
  }
  const fs::path model = folder_.path() / "model";
  fs::copy(bundled, model);
  fs::remove(model / "tokenizer.json");
  fs::create_symlink("/dev/zero", model / "tokenizer.json");
  EXPECT_TRUE(refused_with(run_program({"generate", "-m", model, "-p", "hay"}), 1, {"tokenizer.json", "device"}));
}

TEST_F(LimitsTest, AStandardInputOfADeviceIsRefusedToo) {
  EXPECT_TRUE(
      refused_with(run_program({"generate", "-m", bundled, "-f", "-"}, "exec </dev/zero"), 1, {"--file -", "device"}));
}

TEST_F(LimitsTest, AnImpossibleShapeIsRefusedBeforeMemoryIsFilled) {
  const Outcome outcome = run_program({"bench", "--shape", "1000,1000,1000,256", "--host-memory", "1GiB"});
  EXPECT_TRUE(refused_with(outcome, 1, {"--shape", "noise"}));
  EXPECT_LT(outcome.peak_bytes, std::uint64_t{512} << 20);
}

// The program waits for somebody to write into the pipe, or to read from it; one interrupt is enough.
TEST_F(LimitsTest, TheFirstInterruptEndsTheWaitForAPipe) {
  const std::string pipe = at("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<std::vector<std::string>> commands{
      {"generate", "-m", bundled, "-f", pipe},
      {"needle", "-c", "512", "--haystack", pipe},
      {"needle", "-c", "512", "--depths", "1", "--attn", "dense", "--json", pipe},
  };
  for (const auto& command : commands) {
    Program program(command);
    program.wait_until_asleep_in_poll();
    program.interrupt();
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.exit_code, 130) << command.front() << ": " << outcome.signal << outcome.err;
    EXPECT_NE(outcome.err.find("interrupted"), std::string::npos) << outcome.err;
  }
}

TEST_F(LimitsTest, TheFirstInterruptEndsTheWaitForAQuestion) {
  const std::string saved = at("hay.hay");
  std::ofstream(at("hay.txt")) << "Hay and straw.";
  ASSERT_EQ(run_program({"ingest", "-f", at("hay.txt"), "--save", saved}).exit_code, 0);
  const std::string pipe = at("questions");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int held = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);  // somebody who says nothing
  Program program({"ask", saved, "--template", "{}"}, "", pipe);
  program.wait_until_asleep_in_poll();
  program.interrupt();
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.exit_code, 130) << outcome.signal << outcome.err;
  EXPECT_NE(outcome.err.find("interrupted"), std::string::npos) << outcome.err;
  ::close(held);
}

TEST_F(LimitsTest, QueriesWhoseScoresOverflowAreRefused) {
  for (const char* method : {"dense", "sparq:r=4:k=2", "topk:k=2", "window:k=2:sinks=1"}) {
    EXPECT_TRUE(refused_with(run_program({"attend", "--in", tensors(1e35f, 60000), "--out", at("y"), "--attn", method}),
                             1, {"q holds", "1e+35", "overflow"}))
        << method;
    EXPECT_FALSE(fs::exists(at("y")));
  }
}

TEST_F(LimitsTest, LargeQueriesWhoseScoresAreFiniteAreComputed) {
  ASSERT_EQ(run_program({"attend", "--in", tensors(1e30f, 3), "--out", at("y")}).exit_code, 0);
  const runtime::SafetensorsFile file(at("y"));
  for (const float y : runtime::to_f32(file.at("y"), "y")) EXPECT_EQ(y, 1.0f);
}

}  // namespace
}  // namespace hayloft::test
