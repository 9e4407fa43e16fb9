#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "gpu/make_backend.h"
#include "runtime/context/ingest.h"
#include "runtime/eval/needle/haystack.h"
#include "tests/support/temporary_folder.h"

// A text in which a number is hidden, the bundled model or another, and contexts made of the two.
namespace hayloft::runtime {

inline const std::filesystem::path needle_model =
    std::filesystem::path(HAYLOFT_SOURCE_DIR) / "examples/needle-model/model";

struct Stopped : std::exception {};

class IngestTest : public ::testing::Test {
 protected:
  explicit IngestTest(const std::function<std::filesystem::path(const std::filesystem::path& folder)>& make_model = {})
      : model_path(make_model ? make_model(folder.path() / "model") : needle_model) {
    options.session.cache.block_tokens = 32;
    options.session.cache.window = 16;
    options.session.chunk_tokens = 48;
    options.checkpoint_seconds = 0;
    const auto grammar = eval::make_grammar(3);
    for (int i = 0; i < 60; ++i) text += grammar->next() + " ";
    text += "The special magic number for brave harbor is 482913. ";
    for (int i = 0; i < 40; ++i) text += grammar->next() + " ";
  }

  std::string digest(const std::filesystem::path& path) const {
    const offload::Snapshot snapshot = offload::Snapshot::open(path);
    snapshot.verify();
    return snapshot.content_digest();
  }

  // The same model, but for a byte of its weights' file.
  ModelSource another_model() const {
    const std::filesystem::path other = folder.path() / "other-model";
    std::filesystem::copy(needle_model, other);
    std::fstream weights(other / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    weights.seekp(-1, std::ios::end);
    weights.put('\x55');
    weights.close();
    return {model, tokenizer, other};
  }

  std::string one_go() {
    const std::filesystem::path path = folder.path() / "one.hay";
    ingest(source, arena, text, path, options);
    return digest(path);
  }

  // Digests of the text read in two pieces, cut near those bytes: between sentences, where the tokenizer would cut as
  // well.
  std::vector<std::string> in_pieces(std::initializer_list<std::size_t> places) {
    std::vector<std::string> digests;
    for (const std::size_t near : places) {
      const std::size_t cut = text.find(". ", near) + 1;
      const std::filesystem::path path = folder.path() / fmt::format("appended-{}.hay", cut);
      ingest(source, arena, std::string_view(text).substr(0, cut), path, options);
      append_to(source, arena, std::string_view(text).substr(cut), path, options);
      digests.push_back(digest(path));
    }
    return digests;
  }

  // read(progress) until it ends, interrupted after each third chunk; how many runs that were. between() after each
  // interruption.
  static int interrupted(const std::function<IngestResult(const PrefillProgress&)>& read,
                         const std::function<void()>& between) {
    for (int runs = 1; runs < 100; ++runs) {
      int chunks = 0;
      try {
        const IngestResult result = read([&](std::int64_t, std::int64_t) {
          if (++chunks == 3) throw Stopped();
        });
        EXPECT_GT(result.resumed_from, 0);
        return runs;
      } catch (const Stopped&) {
        between();
      }
    }
    ADD_FAILURE() << "it does not come to an end";
    return 100;
  }

  // Reads the text as `begun` says, into NAME.hay in one go and into another file in two, the second of which is asked
  // for other options. That file, of the same contents, which are not those of digest `other`.
  std::filesystem::path read_in_two(const std::string& name, const IngestOptions& begun, const std::string& other) {
    const std::filesystem::path whole = folder.path() / (name + ".hay"),
                                pieces = folder.path() / (name + "-pieces.hay");
    ingest(source, arena, text, whole, begun);
    EXPECT_NE(digest(whole), other);
    const std::size_t cut = text.find(". ", text.size() / 2) + 1;
    ingest(source, arena, std::string_view(text).substr(0, cut), pieces, begun);
    append_to(source, arena, std::string_view(text).substr(cut), pieces, options);
    EXPECT_EQ(digest(pieces), digest(whole));
    return pieces;
  }

  std::vector<float> answer(Session session) const {
    const auto question = tokenizer.encode("\nThe special magic number for brave harbor is", false);
    session.append(std::span(question).first(question.size() - 1));
    return session.step(question.back());
  }

  test::TemporaryFolder folder;
  offload::Topology topology;
  offload::Threads threads{2};
  std::unique_ptr<gpu::Backend> backend = gpu::make_cpu_backend(threads);
  offload::Arena arena{topology, {.budget_bytes = 256 << 20}};
  std::filesystem::path model_path;
  Tokenizer tokenizer{model_path};
  Model model{model_path, *backend};
  ModelSource source{model, tokenizer, model_path};
  IngestOptions options;
  std::string text;
};

}  // namespace hayloft::runtime
