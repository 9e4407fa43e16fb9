#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "tests/program/program.h"
#include "tests/support/temporary_folder.h"

// Options that do nothing beside the others given: a line says so, or refuses them.
namespace hayloft {
namespace {

using test::Outcome;
using test::refused_with;
using test::run_program;
using Words = std::vector<std::string>;

Outcome run(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words);
}

// Returns the notes on standard error that say so.
Words notes_of(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  Words notes;
  for (std::size_t at = 0; (at = outcome.err.find("note: --", at)) != std::string::npos; ++at) {
    const std::string line = outcome.err.substr(at, outcome.err.find('\n', at) - at);
    if (line.find(" no effect: ") != std::string::npos) notes.push_back(line);
  }
  return notes;
}

const std::string model = HAYLOFT_SOURCE_DIR "/examples/needle-model/model";

TEST(UnusedOptions, OfACudaDeviceBesideTheCpu) {
  const Words needle = {"needle", "-c", "512", "--depths", "1", "--attn", "dense", "-t", "1"};
  EXPECT_EQ(
      notes_of(run(needle, {"--device", "cpu", "--gpu-memory", "1GiB", "--link", "sm", "--kv-host", "pinned",
                            "--device-rows", "1GiB", "--experts", "link", "--link", "sm"})),
      Words{"note: --device-rows, --experts, --gpu-memory, --kv-host, --link have no effect: not used by --device "
            "cpu, but by cuda"});
  EXPECT_EQ(notes_of(run(needle, {"--device", "cpu", "--device-rows", "off"})), Words{});
  if (gpu::cuda_devices() == 0) {
    EXPECT_EQ(notes_of(run(needle, {"--device-rows", "1GiB"})),
              Words{"note: --device-rows has no effect: not used by --device auto where no GPU computes, but by cuda"});
  }
  const Words plan = {"plan", "-m", model, "-c", "512", "--device", "cpu"};
  EXPECT_EQ(notes_of(run(plan, {"--card", "rtx4060"})),
            Words{"note: --card has no effect: not used by --device cpu, but by cuda"});
  EXPECT_EQ(notes_of(run(plan, {"--link-rate", "10", "--device-rate", "100"})),
            Words{"note: --device-rate, --link-rate have no effect: not used by --device cpu, but by cuda"});
  EXPECT_EQ(notes_of(run(plan, {})), Words{});
}

TEST(UnusedOptions, OfAMethodBesideItsOthers) {
  const Words needle = {"needle", "-c", "512", "--depths", "1", "-t", "1"};
  EXPECT_EQ(notes_of(run(needle, {"--attn", "topk", "--attn-group", "logits", "--attn-seed", "3"})),
            (Words{"note: --attn-group has no effect: topk ranks for each query head alone; select=kv-head ranks for a "
                   "group",
                   "note: --attn-seed has no effect: it is the seed of rest=draw"}));
  EXPECT_EQ(notes_of(run(needle, {"--attn", "topk,sparq:rest=draw", "--attn-group", "logits", "--attn-seed", "3"})),
            Words{});
}

TEST(UnusedOptions, OfASearchBesideAnIndexThatIsSaved) {
  const test::TemporaryFolder folder;
  const std::string text = folder.write("text.txt", "the grass is green, the sky is blue, the sun is yellow");
  const std::string context = folder / "text.hay";
  EXPECT_EQ(notes_of(run({"ingest", "-m", model, "-f", text, "--save", context, "-t", "1"}, {})), Words{});
  const Words index = {"index", context, "-t", "1", "--index"};
  EXPECT_EQ(notes_of(run(index, {"ann:Flat:aware=off"})), Words{});
  EXPECT_EQ(
      notes_of(run(index, {"ann:IVF4,Flat:nprobe=2:k=5"})),
      Words{"note: --index ann:IVF4,Flat:nprobe=2:k=5: what it says of searches has no effect: an index is made by "
            "factory and aware"});
}

TEST(UnusedOptions, OfExpertsThatTheModelHasNot) {
  const Words plan = {"plan", "-m", model, "-c", "512", "--gpu-memory", "1GiB"};
  EXPECT_EQ(notes_of(run(plan, {"--experts", "link"})),
            Words{"note: --experts has no effect: the model has no experts"});
  EXPECT_EQ(notes_of(run(plan, {"--experts", "auto"})), Words{});
}

TEST(UnusedOptions, OfDrawingWhereTheLikeliestTokenIsTaken) {
  const Words generate = {"generate", "-m", model, "-p", "hay", "-n", "1", "-t", "1"};
  const std::string why = " no effect: the temperature is 0, which takes the most likely token; --temp sets another";
  EXPECT_EQ(notes_of(run(generate, {"--top-k", "40", "--top-p", "0.9"})), Words{"note: --top-k, --top-p have" + why});
  EXPECT_EQ(notes_of(run(generate, {"--temp", "0", "--seed", "3"})), Words{"note: --seed has" + why});
  EXPECT_EQ(notes_of(run(generate, {"--temp", "1", "--top-k", "40", "--seed", "3"})), Words{});
}

TEST(UnusedOptions, BlocksOfASavedContextStayAsTheyAre) {
  const test::TemporaryFolder folder;
  const std::string context = folder / "hay.hay";
  ASSERT_EQ(run_program({"ingest", "-f", folder.write("hay.txt", "The hay lies in the loft."), "--save", context,
                         "--block-tokens", "64"})
                .exit_code,
            0);
  const std::string begun = "hay.hay was begun with 64, which stays";
  EXPECT_TRUE(refused_with(run_program({"ask", context, "-p", "Where?", "-n", "1", "--block-tokens", "128"}), 1,
                           {"--block-tokens 128: ", begun}));
  EXPECT_TRUE(
      refused_with(run_program({"index", context, "--block-tokens", "128"}), 1, {"--block-tokens 128: ", begun}));
  EXPECT_EQ(run_program({"ask", context, "-p", "Where?", "-n", "1", "--block-tokens", "64"}).exit_code, 0);
}

TEST(UnusedOptions, OfMeasuringTheLink) {
  const test::TemporaryFolder folder;
  EXPECT_TRUE(refused_with(run_program({"link", "--list-tests", "--json", folder / "x.json"}), 2,
                           {"--json: --list-tests prints names and measures nothing"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "x.json"));
  EXPECT_TRUE(refused_with(run_program({"link", "--format", "csv", "--json", "-"}), 2, {"--format", "--json -"}));
  EXPECT_EQ(notes_of(run_program({"link", "--tests", "memory", "--seconds", "0.1", "--footprint", "64MiB",
                                  "--link-footprint", "64MiB"})),
            Words{"note: --link-footprint has no effect: none of --tests measures the link to a GPU"});
}

TEST(UnusedOptions, OfThreadsThatAreThere) {
  const Words plan = {"plan", "--shape", "2,4,2,64", "-c", "4k", "--device", "cpu"};
  const Words notes = notes_of(run(plan, {"--oversubscribe"}));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(notes.front().starts_with("note: --oversubscribe has no effect: --threads asks for no more than "));
  EXPECT_EQ(notes_of(run(plan, {"--oversubscribe", "-t", "1024"})), Words{});
}

TEST(UnusedOptions, OfEqualBytesWhereEveryKeyIsRead) {
  const Words eval = {"eval", "--tasks", "needle", "-c", "512", "--samples", "1", "--equal-bytes", "32", "-t", "1"};
  EXPECT_EQ(notes_of(run(eval, {"--attn", "dense"})),
            Words{"note: --equal-bytes has no effect: all methods of --attn read every key"});
  EXPECT_EQ(notes_of(run(eval, {"--attn", "dense,sparq:k=64"})), Words{});
}

TEST(UnusedOptions, OfAPenaltyThatIsOff) {
  const Words generate = {"generate", "-m", model, "-p", "The hay", "-n", "1", "-t", "1", "--repeat-last-n", "5"};
  EXPECT_EQ(notes_of(run(generate, {})),
            Words{"note: --repeat-last-n has no effect: it belongs to --repeat-penalty, which is off"});
  EXPECT_EQ(notes_of(run(generate, {"--repeat-penalty", "1.1"})), Words{});
}

}  // namespace
}  // namespace hayloft
