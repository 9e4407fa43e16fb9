#include "runtime/decode/draft_head.h"

#include <algorithm>
#include <string>

#include "offload/error.h"
#include "runtime/decode/drafting.h"
#include "tests/runtime/decode/session_fixture.h"
#include "tests/support/gguf_from_folder.h"
#include "tests/support/head_oracle.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// The head that predicts further tokens, against its equations, and what it drafts.
namespace hayloft::runtime {
namespace {

class DraftHeadTest : public SessionTest {
 protected:
  std::filesystem::path folder_with_head(const std::string& name, test::HybridShape shape = {}) const {
    shape.head = true;
    return test::write_hybrid_model(folder_.path() / name, shape);
  }
  std::unique_ptr<Model> load(const std::filesystem::path& path) {
    return std::make_unique<Model>(path, *backend, WeightForm::stored, RopeOverrides{}, ExpertPlace::automatic, true);
  }

  // The states that a model gives behind tokens that are read at once.
  std::vector<std::vector<double>> states_of(const Model& of, std::span<const std::int32_t> tokens) {
    Cache cache(*backend, arena, of.config(), options.cache);
    Workspace workspace;
    PrefillAttention attention({}, {}, local_attender());
    std::vector<std::vector<double>> states;
    of.forward(cache, workspace, tokens, Want::none, attention, {}, [&](auto seen, const float* values) {
      const auto hidden = static_cast<std::size_t>(of.config().hidden_size);
      for (std::size_t i = 0; i < seen.size(); ++i) {
        states.emplace_back(values + i * hidden, values + (i + 1) * hidden);
      }
    });
    return states;
  }

  std::vector<std::int32_t> text(const Model& of, std::span<const std::int32_t> prompt, const std::string& draft,
                                 const SamplerOptions& sampling, int count, DraftFigures& figures) {
    Session session(of, arena, options);
    session.append(prompt.first(prompt.size() - 1));
    Sampler sampler(sampling);
    DraftOptions source = parse_draft(draft);
    source.costs = DraftCosts{0.05, 0.05};
    source.most = 6;
    Drafting drafting(source);
    drafting.read(prompt);
    std::vector<std::int32_t> drawn;
    while (static_cast<int>(drawn.size()) < count) {
      drafting.next(session, sampler, count - static_cast<int>(drawn.size()), [&](std::int32_t token) {
        drawn.push_back(token);
        return true;
      });
    }
    figures = drafting.figures();
    return drawn;
  }

  test::TemporaryFolder folder_;
};

// Keys and values are f16, 11 bits, everything else f32: the oracle has neither rounding.
constexpr double kLogitError = 1.0 / 1024;

TEST_F(DraftHeadTest, ItsSizesAreKnownFromTheFilesAlone) {
  for (const int experts : {0, 4}) {
    const auto path = folder_with_head(experts > 0 ? "moe" : "dense", {.experts = experts});
    const auto checkpoint = Checkpoint::open(path);
    const std::optional<WeightSizes> head = head_sizes(*checkpoint);
    ASSERT_TRUE(head);
    const auto of = load(path);
    EXPECT_EQ(head->bytes_per_step, of->head()->weight_sizes().bytes_per_step);
    EXPECT_EQ(head->weights_per_step, of->head()->weight_sizes().weights_per_step);
    const std::uint64_t alone = weight_sizes(*Checkpoint::open(path)).bytes;
    EXPECT_EQ(head->bytes, weight_sizes(*Checkpoint::open(path), WeightForm::stored, true).bytes - alone);
    EXPECT_GT(head->bytes, 0U);
  }
  test::HybridShape without;
  EXPECT_FALSE(head_sizes(*Checkpoint::open(test::write_hybrid_model(folder_.path() / "without", without))));
}

TEST_F(DraftHeadTest, SaysWhatItsEquationsSay) {
  for (const int experts : {0, 4}) {
    const auto path = folder_with_head(experts > 0 ? "moe" : "dense", {.experts = experts});
    const auto of = load(path);
    const test::HeadOracle oracle(path);
    const auto tokens = random_tokens(9, of->config().vocab_size, 3);
    const auto states = states_of(*of, std::span(tokens).first(8));
    ASSERT_EQ(states.size(), 8u);
    std::vector<test::HeadOracle::Entry> entries;
    for (std::size_t i = 0; i < 8; ++i) entries.push_back({tokens[i + 1], states[i]});

    // A session that has read the text in chunks of other sizes drafts by these equations, too.
    options.chunk_tokens = 3;
    Session session(*of, arena, options);
    session.append(std::span(tokens).first(5));
    EXPECT_TRUE(session.head_knows_text());
    session.append(std::span(tokens).subspan(5, 3));
    ASSERT_TRUE(session.head_knows_text());

    DraftHead head(*of->head(), arena);
    Workspace workspace;
    const auto hidden = static_cast<std::size_t>(of->config().hidden_size);
    std::vector<float> flat;
    for (const auto& state : states) flat.insert(flat.end(), state.begin(), state.end());
    head.read(0, std::span(tokens).first(3), flat.data(), workspace);
    head.read(3, std::span(tokens).subspan(3, 1), flat.data() + 3 * hidden, workspace);
    head.read(4, std::span(tokens).subspan(4, 4), flat.data() + 4 * hidden, workspace);
    ASSERT_TRUE(head.knows(8));
    int drafted = 0;
    std::vector<std::int32_t> drawn;
    head.draft(tokens.back(), 3, workspace, [&](const float* logits) {
      const auto said = oracle.behind(entries);
      double largest = 0, most = 0;
      for (std::size_t i = 0; i < said.logits.size(); ++i) {
        largest = std::max(largest, std::abs(said.logits[i]));
        most = std::max(most, std::abs(said.logits[i] - static_cast<double>(logits[i])));
      }
      EXPECT_LT(most, kLogitError * largest) << "draft " << drafted << ", experts " << experts;
      drawn.push_back(static_cast<std::int32_t>(std::ranges::max_element(said.logits) - said.logits.begin()));
      entries.push_back({drawn.back(), said.state});
      ++drafted;
      return drawn.back();
    });
    EXPECT_EQ(drafted, 3);
    EXPECT_EQ(session.draft_by_head(tokens.back(), Sampler({}), 3), drawn);
  }
}

TEST_F(DraftHeadTest, StatesAreThoseThatLogitsAreMadeOf) {
  const auto path = folder_with_head("model");
  const auto of = load(path);
  const auto tokens = random_tokens(20, of->config().vocab_size, 5);
  const auto states = states_of(*of, tokens);
  Session session(*of, arena, options);
  const std::vector<float> logits = session.score(tokens);
  const SafetensorsFile file(path / "model.safetensors");
  const std::vector<float> table = to_f32(file.at("model.embed_tokens.weight"), "table");
  const auto hidden = static_cast<std::size_t>(of->config().hidden_size);
  for (const std::size_t token : {std::size_t{0}, std::size_t{77}, std::size_t{5119}}) {
    for (std::size_t i = 0; i < states.size(); ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < hidden; ++j) sum += states[i][j] * static_cast<double>(table[token * hidden + j]);
      EXPECT_NEAR(sum, logits[i * 5120 + token], 1e-3);
    }
  }
}

TEST_F(DraftHeadTest, TheTextIsThatOfSingleStepsFromFolderAndGguf) {
  for (const int experts : {0, 4}) {
    const auto path = folder_with_head(experts > 0 ? "moe" : "dense", {.experts = experts});
    const auto gguf = folder_.write(experts > 0 ? "moe.gguf" : "dense.gguf", test::GgufFromFolder(path).image.bytes());
    const Model plain(path, *backend);
    const auto of = load(path), of_gguf = load(gguf);
    const auto prompt = random_tokens(50, plain.config().vocab_size, 4);
    for (const SamplerOptions& sampling : {SamplerOptions{}, SamplerOptions{.temperature = 0.7f, .seed = 5}}) {
      DraftFigures none, mtp, of_file, both;
      const auto expected = text(plain, prompt, "none", sampling, 200, none);
      EXPECT_EQ(text(*of, prompt, "mtp", sampling, 200, mtp), expected);
      EXPECT_EQ(text(*of, prompt, "lookup,mtp", sampling, 200, both), expected);
      EXPECT_GT(mtp.drafted, 0);
      EXPECT_EQ(text(*of_gguf, prompt, "mtp", sampling, 200, of_file), expected);
      EXPECT_EQ(of_file.drafted, mtp.drafted);
      EXPECT_EQ(of_file.accepted, mtp.accepted);
    }
  }
}

TEST_F(DraftHeadTest, AFileOfLlamaCppsConverterHasOne) {
  const auto of = load(goldens.parent_path() / "gguf/qwen35.gguf");
  const auto prompt = random_tokens(30, of->config().vocab_size, 4);
  DraftFigures none, mtp;
  EXPECT_EQ(text(*of, prompt, "mtp", {}, 100, mtp), text(*of, prompt, "none", {}, 100, none));
  EXPECT_GT(mtp.drafted, 0);
}

TEST_F(DraftHeadTest, AHeadThatIsRightIsAccepted) {
  const auto path = folder_with_head("copies", {.copies = true});
  const auto of = load(path);
  const auto prompt = random_tokens(30, of->config().vocab_size, 4);
  DraftFigures figures;
  const auto drawn = text(*of, prompt, "mtp", {}, 100, figures);
  EXPECT_EQ(std::ranges::count(drawn, prompt.back()), 100);
  EXPECT_GT(figures.accepted, 80);
  EXPECT_LT(figures.passes, 20);
}

// A draft that is not accepted is nowhere: behind it the head says what one does that has only read the text.
TEST_F(DraftHeadTest, WhatIsNotAcceptedLeavesNoTrace) {
  const auto of = load(folder_with_head("model"));
  const auto prompt = random_tokens(40, of->config().vocab_size, 4);
  Session session(*of, arena, options);
  session.append(std::span(prompt).first(39));
  std::vector<std::int32_t> all(prompt.begin(), prompt.end());
  for (int pass = 0; pass < 6; ++pass) {
    std::vector<std::int32_t> tokens = session.draft_by_head(all.back(), Sampler({}), 5);
    EXPECT_EQ(tokens, session.draft_by_head(all.back(), Sampler({}), 5)) << "drafting itself leaves nothing";
    tokens.insert(tokens.begin(), all.back());
    const int kept = session.verify(tokens, [&](const float*, int T) { return std::min(T, 1 + pass % 3); });
    all.pop_back();
    all.insert(all.end(), tokens.begin(), tokens.begin() + kept);
    all.push_back(static_cast<std::int32_t>(pass * 7 + 1));
    ASSERT_TRUE(session.head_knows_text());
    const Session fork = session.fork();
    EXPECT_TRUE(fork.head_knows_text());
    Session other(*of, arena, options);
    other.append(std::span(prompt).first(39));
    for (std::size_t i = 39; i + 1 < all.size(); ++i) other.verify({&all[i], 1}, [](const float*, int) { return 1; });
    EXPECT_EQ(session.draft_by_head(all.back(), Sampler({}), 4), other.draft_by_head(all.back(), Sampler({}), 4));
    EXPECT_EQ(session.fork().step(9), other.fork().step(9));
  }
}

TEST_F(DraftHeadTest, BeginsAnewBehindTokensThatItWasNotToldOf) {
  const auto of = load(folder_with_head("model"));
  const auto prompt = random_tokens(40, of->config().vocab_size, 4);
  Session session(*of, arena, options);
  session.append(prompt);
  ASSERT_TRUE(session.head_knows_text());
  session.step(3);  // single steps tell it
  EXPECT_TRUE(session.head_knows_text());
  Session::Step step{&session, 5, nullptr, 0, {}, {}};
  Session::step_together({&step, 1});  // steps of several sessions do not
  EXPECT_FALSE(session.head_knows_text());
  EXPECT_TRUE(session.draft_by_head(4, Sampler({}), 3).empty());
  session.append(std::span(prompt).first(2));
  EXPECT_EQ(session.draft_by_head(4, Sampler({}), 3).size(), 3u);
}

TEST_F(DraftHeadTest, ReadingLayerByLayerTellsItToo) {
  const auto of = load(folder_with_head("model"));
  const auto prompt = random_tokens(70, of->config().vocab_size, 4);
  options.prefill.order = PrefillOptions::Order::layer;
  Session by_layer(*of, arena, options);
  by_layer.append(prompt);
  options.prefill.order = PrefillOptions::Order::chunk;
  Session by_chunk(*of, arena, options);
  by_chunk.append(prompt);
  ASSERT_TRUE(by_layer.head_knows_text());
  EXPECT_EQ(by_layer.draft_by_head(7, Sampler({}), 4), by_chunk.draft_by_head(7, Sampler({}), 4));
}

TEST_F(DraftHeadTest, ModelsWithoutOneOrWithAnotherAreRefusedInALine) {
  const auto refused = [&](const std::filesystem::path& path, std::initializer_list<std::string> parts) {
    return test::refuses([&] { load(path); }, parts);
  };
  EXPECT_TRUE(refused(goldens / "llama", {"--draft mtp", "model.safetensors", "no head", "--draft lookup"}));
  EXPECT_TRUE(refused(test::write_hybrid_model(folder_.path() / "none"), {"--draft mtp", "no head"}));
  const auto changed = [&](const std::string& name, const std::string& from, const std::string& to) {
    const auto path = folder_with_head(name);
    std::ifstream in(path / "config.json");
    std::string config{std::istreambuf_iterator<char>(in), {}};
    config.replace(config.find(from), from.size(), to);
    std::ofstream(path / "config.json") << config;
    return path;
  };
  EXPECT_TRUE(refused(changed("two", "mtp_num_hidden_layers\": 1", "mtp_num_hidden_layers\": 2"), {"has 2 layers"}));
  EXPECT_TRUE(refused(changed("own", "dedicated_embeddings\": false", "dedicated_embeddings\": true"),
                      {"embeddings or an output of its own"}));
  const Model without(folder_with_head("model"), *backend);
  EXPECT_NE(without.skipped().front().find("--draft mtp"), std::string::npos) << without.skipped().front();
  Session session(without, arena, options);
  EXPECT_TRUE(test::refuses([&] { session.draft_by_head(1, Sampler({}), 2); }, {"--draft mtp", "without its head"}));
  EXPECT_TRUE(load(folder_.path() / "model")->skipped().empty());
}

}  // namespace
}  // namespace hayloft::runtime
