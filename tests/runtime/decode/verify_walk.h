#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <vector>

#include "offload/snapshot/writer.h"
#include "runtime/decode/session.h"

// Several tokens verified in one pass against as many single steps by `dense` of the same backend, to the bit.
namespace hayloft::runtime {

// Compares what a session has of a sequence: the rows of every tail, the states, and the rows of the store.
inline void expect_same_cache(const Cache& a, const Cache& b) {
  ASSERT_EQ(a.tokens(), b.tokens());
  ASSERT_EQ(a.spilled_bytes(), b.spilled_bytes());
  const auto ours = a.tails(), theirs = b.tails();
  for (std::size_t layer = 0; layer < ours.size(); ++layer) {
    ASSERT_EQ(ours[layer].position, theirs[layer].position) << layer;
    ASSERT_EQ(ours[layer].state, theirs[layer].state) << layer;
    ASSERT_EQ(ours[layer].rows.size(), theirs[layer].rows.size()) << layer;
    const std::size_t bytes = ours[layer].rows.size() * sizeof(f16);  // none in a recurrent layer
    ASSERT_TRUE(bytes == 0 || std::memcmp(ours[layer].rows.data(), theirs[layer].rows.data(), bytes) == 0) << layer;
  }
  for (int layer = 0; layer < a.store().shape().layers; ++layer) {
    const offload::LayerView mine = a.store().layer(layer), other = b.store().layer(layer);
    ASSERT_EQ(mine.tokens, other.tokens);
    for (std::size_t i = 0; i < mine.blocks.size(); ++i) {
      ASSERT_EQ(0, std::memcmp(mine.blocks[i], other.blocks[i], mine.layout->block_bytes)) << "block " << i;
    }
  }
}

// Returns the session as it is once it has been saved to the file and opened again.
inline Session saved_and_opened(const Model& of, offload::Arena& arena, const SessionOptions& with,
                                const Session& session, std::span<const std::int32_t> text,
                                const std::filesystem::path& file) {
  const Cache& cache = session.cache();
  const std::vector<offload::SnapshotTail> tails = cache.tails();
  std::vector<offload::TailImage> images;
  for (const offload::SnapshotTail& tail : tails) images.push_back(tail.image());
  offload::save_snapshot(file, {{}, cache.store().shape(), of.config().layers, ""}, cache.store(), text, images, true);
  return Session(of, arena, with, offload::Snapshot::open(file));
}

// Walks of passes of random lengths, of each of which a random number of tokens is kept, beside single steps of what
// stays. Forks go on where they were made, and so do sessions that were saved in the folder, where there is one.
inline void expect_as_single_steps(const Model& of, offload::Arena& arena, const SessionOptions& with,
                                   std::uint32_t seed, int wanted, int longest_prompt = 140,
                                   const std::filesystem::path& folder = {}) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int vocab = of.config().vocab_size;
  const auto random_text = [&](int count) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = below(vocab);
    return tokens;
  };
  const auto prompt = random_text(1 + below(longest_prompt));
  Session together(of, arena, with), alone(of, arena, with);
  together.append(prompt);
  alone.append(prompt);
  std::vector<std::int32_t> text = prompt;
  int passes = 0;
  for (int done = 0; done < wanted; ++passes) {
    const auto tokens = random_text(1 + below(20));
    std::vector<float> logits;
    const int kept = together.verify(tokens, [&](const float* values, int T) {
      logits.resize(static_cast<std::size_t>(T) * static_cast<std::size_t>(vocab));
      of.backend().to_host(logits.data(), values, logits.size() * sizeof(float), of.backend().stream());
      return 1 + below(T);
    });
    for (int i = 0; i < kept; ++i) {
      const auto from = logits.begin() + static_cast<std::ptrdiff_t>(i) * vocab;
      ASSERT_EQ(std::vector<float>(from, from + vocab), alone.step(tokens[static_cast<std::size_t>(i)]))
          << "token " << done + i;
    }
    done += kept;
    text.insert(text.end(), tokens.begin(), tokens.begin() + kept);
    ASSERT_NO_FATAL_FAILURE(expect_same_cache(together.cache(), alone.cache())) << "after " << done;
    ASSERT_EQ(together.steps(), alone.steps());
    ASSERT_EQ(together.counters().elements, alone.counters().elements);
    ASSERT_EQ(together.counters().rows_fetched, alone.counters().rows_fetched);
    ASSERT_EQ(together.counters().at(Place::link, Kind::spill), alone.counters().at(Place::link, Kind::spill));
    ASSERT_LE(together.counters().total(Place::link), alone.counters().total(Place::link) * 20);
    ASSERT_EQ(together.attended_share(), alone.attended_share());
    ASSERT_EQ(together.methods_used(), alone.methods_used());
    if (below(4) == 0) together = together.fork(), alone = alone.fork();
    if (!folder.empty() && below(4) == 0) {
      together = saved_and_opened(of, arena, with, together, text, folder / "together.hay");
      alone = saved_and_opened(of, arena, with, alone, text, folder / "alone.hay");
    }
  }
  EXPECT_LT(passes, wanted / 2) << "tokens stay in runs";
}

}  // namespace hayloft::runtime
