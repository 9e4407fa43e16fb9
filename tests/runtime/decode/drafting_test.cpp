#include "runtime/decode/drafting.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "offload/error.h"
#include "tests/runtime/decode/session_fixture.h"
#include "tests/support/hybrid_model.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

// Texts that are drafted and verified, against the same decoded token by token.
namespace hayloft::runtime {
namespace {

// The place by comparing the end of the text with every place before it.
Lookup::Found found_by_comparing(const std::vector<std::int32_t>& text) {
  Lookup::Found best;
  const auto n = static_cast<std::int64_t>(text.size());
  for (std::int64_t end = 0; end + 1 < n; ++end) {
    int length = 0;
    while (length < Lookup::longest && length <= end &&
           text[static_cast<std::size_t>(end - length)] == text[static_cast<std::size_t>(n - 1 - length)]) {
      ++length;
    }
    if (length >= Lookup::orders.back() && length >= best.length) best = {end + 1, length};
  }
  return best;
}

TEST(LookupTest, FindsTheLongestAgreementAndTheNewestOfEquals) {
  for (const int vocab : {2, 5, 40}) {
    const auto text = random_tokens(1500, vocab, static_cast<std::uint32_t>(vocab));
    Lookup lookup;
    int found = 0;
    std::vector<std::int32_t> so_far;
    for (const std::int32_t token : text) {
      lookup.push(token);
      so_far.push_back(token);
      const Lookup::Found place = lookup.find(), expected = found_by_comparing(so_far);
      if (vocab > 2) {  // two tokens have more places of a run than are compared
        ASSERT_EQ(place.length, expected.length) << "at " << so_far.size();
        ASSERT_EQ(place.next, expected.next) << "at " << so_far.size();
      }
      ASSERT_EQ(place.length > 0, expected.length > 0);
      found += place.length > 0 ? 1 : 0;
    }
    EXPECT_GT(found, 100 / vocab);
  }
}

TEST(LookupTest, ACopyGoesOnWithWhatItHasCopied) {
  Lookup lookup;
  const std::vector<std::int32_t> text = {9, 1, 2, 3, 1, 2, 3, 1, 2, 3};
  lookup.read(text);
  const std::vector<std::int32_t> expected = {1, 2, 3, 1, 2, 3, 1};
  EXPECT_EQ(lookup.copy(lookup.find(), 7), expected);
}

TEST(LookupTest, PartsMakeTheSameIndexAsTheWhole) {
  const auto text = random_tokens(5000, 7, 3);
  Lookup whole, parts;
  whole.read(text);
  for (std::size_t at = 0; at < text.size(); at += 777) {
    parts.read(std::span(text).subspan(at, std::min<std::size_t>(777, text.size() - at)));
  }
  EXPECT_EQ(whole.find().next, parts.find().next);
  EXPECT_EQ(whole.find().length, parts.find().length);
}

TEST(DraftLengthTest, AsManyAreDraftedAsAreWorthIt) {
  EXPECT_EQ(tokens_worth_drafting(0.5, {.verify = 0.6}, 10), 0);
  EXPECT_EQ(tokens_worth_drafting(0.5, {.verify = 0.3}, 10), 1);                // 0.5 > 0.3 > 0.25
  EXPECT_EQ(tokens_worth_drafting(0.9, {.verify = 0.2, .draft = 0.3}, 10), 6);  // 0.9^6 = 0.53
  EXPECT_EQ(tokens_worth_drafting(1, {.verify = 0.2}, 10), 10);
}

TEST(DraftLengthTest, TokensCostExpertsAsLongAsThereAreOthers) {
  const DraftCosts costs{.verify = 0.01, .draft = 0.02, .experts = 0.5, .tokens_of_all_experts = 3.5};
  EXPECT_DOUBLE_EQ(costs.of_token(1), 0.53);
  EXPECT_DOUBLE_EQ(costs.of_token(2), 0.53);
  EXPECT_DOUBLE_EQ(costs.of_token(3), 0.28);  // half of what it goes through has been read
  EXPECT_DOUBLE_EQ(costs.of_token(4), 0.03);
  EXPECT_DOUBLE_EQ(costs.of_pass(4), 2.37);
  EXPECT_EQ(tokens_worth_drafting(0.7, costs, 10), 1);  // 0.7 > 0.53 > 0.49
}

TEST(DraftLengthTest, APassReadsTheContextOnceAndExpertsByToken) {
  ModelConfig config;
  config.query_heads = 8, config.kv_heads = 2;
  WeightSizes weights;
  weights.bytes_per_step = 1000, weights.expert_bytes_per_step = 400, weights.tokens_of_all_experts = 4;
  weights.weights_per_step[4] = 2000;
  Counters dense, few;
  dense.elements = 300, dense.at(Place::link, Kind::dense) = 5000, dense.at(Place::device, Kind::rows) = 100;
  few.elements = 30, few.at(Place::link, Kind::rows) = 600;
  // A multiplication takes a processor half as long as a byte that it reads.
  const double products = 2000 + 4 * 300, step = 1000 + 5100 + 0.5 * products;
  const DraftCosts costs = draft_costs(config, weights, dense, DraftStep{weights, few}, false);
  EXPECT_DOUBLE_EQ(costs.verify, 0.5 * products / step);
  EXPECT_DOUBLE_EQ(costs.draft, (1000 + 600 + 0.5 * (2000 + 4 * 30)) / step);
  EXPECT_DOUBLE_EQ(costs.experts, 400 / step);
  EXPECT_EQ(costs.tokens_of_all_experts, 4);
  EXPECT_EQ(draft_costs(config, weights, dense, {}, false).draft, 0);
  // A device's own memory is twenty times as fast as its link, and its products are faster still.
  const DraftCosts device = draft_costs(config, weights, dense, DraftStep{weights, few}, true);
  EXPECT_DOUBLE_EQ(device.draft, (600 + 0.05 * 1000 + 0.02 * 2120) / (5000 + 0.05 * 1100 + 0.02 * products));
}

TEST(DraftLengthTest, APassGivesWhatIsAcceptedAndOneMore) {
  EXPECT_EQ(tokens_of_pass(0, 5), 1);
  EXPECT_EQ(tokens_of_pass(1, 5), 6);
  EXPECT_DOUBLE_EQ(tokens_of_pass(0.5, 3), 1.875);
}

TEST(DraftLengthTest, WhatIsNotAcceptedIsSoonNotDraftedAndTriedAgainSomeTime) {
  Acceptance acceptance(0.9);
  int wrong = 0;
  while (tokens_worth_drafting(acceptance.share(), {.verify = 0.4}, 8) > 0) acceptance.add(0, 1), ++wrong;
  EXPECT_LE(wrong, 6);
  acceptance.add(0, 1);
  int passed_over = 0;
  while (tokens_worth_drafting(acceptance.share(), {.verify = 0.4}, 8) == 0) acceptance.pass_over(), ++passed_over;
  EXPECT_GT(passed_over, 20);
  for (int i = 0; i < 10; ++i) acceptance.add(8, 8);
  EXPECT_GT(acceptance.share(), 0.9);
}

TEST(DraftOptionsTest, AreReadAsTheyAreWritten) {
  EXPECT_TRUE(parse_draft("lookup").lookup);
  EXPECT_FALSE(parse_draft("lookup").self);
  EXPECT_FALSE(parse_draft("none").any());
  EXPECT_EQ(method_label(*parse_draft("self").self), "sparq r=16 k=128");
  const DraftOptions both = parse_draft("self:topk:k=64,32,lookup");
  EXPECT_TRUE(both.lookup);
  EXPECT_EQ(both.self->name, "topk");
  EXPECT_EQ(parse_draft("lookup,self:sparq:r=8").self->rank, 8);
  EXPECT_TRUE(parse_draft("mtp").head);
  EXPECT_FALSE(parse_draft("mtp").lookup);
  EXPECT_TRUE(parse_draft("lookup,mtp").head && parse_draft("mtp,lookup").lookup);
  EXPECT_FALSE(parse_draft("lookup").head);
  for (const char* twice : {"self,self:topk", "self:topk:k=64,32,self", "self,lookup,self"}) {
    EXPECT_TRUE(test::refuses([&] { parse_draft(twice); }, {twice, "self twice"}));
  }
  for (const char* wrong :
       {"", "mtp:k=1", "mtp,self", "lookup,", "lookup:k=1", "lookupself", "self:dense", "self:h2o", "self:nothing"}) {
    EXPECT_THROW(parse_draft(wrong), Error) << wrong;
  }
}

class DraftingTest : public SessionTest {
 protected:
  struct Case {
    DraftOptions drafts;
    SamplerOptions sampling;
  };

  std::vector<std::int32_t> one_by_one(const Model& of, std::span<const std::int32_t> prompt, const SamplerOptions& by,
                                       int count) {
    Session session(of, arena, options);
    session.append(prompt.first(prompt.size() - 1));
    Sampler sampler(by);
    if (sampler.reads_prompt()) sampler.read(prompt);
    std::vector<std::int32_t> text;
    for (std::int32_t token = prompt.back(); static_cast<int>(text.size()) < count;) {
      text.push_back(token = session.next(token, sampler));
    }
    return text;
  }

  std::vector<std::int32_t> drafted(const Model& of, std::span<const std::int32_t> prompt, const Case& by, int count,
                                    DraftFigures& figures) {
    Session session(of, arena, options);
    session.append(prompt.first(prompt.size() - 1));
    Sampler sampler(by.sampling);
    if (sampler.reads_prompt()) sampler.read(prompt);
    Drafting drafting(by.drafts);
    drafting.read(prompt);
    if (by.drafts.self) session.set_draft_method(make_method(*by.drafts.self, of.config().head_dim));
    std::vector<std::int32_t> text;
    while (static_cast<int>(text.size()) < count) {
      drafting.next(session, sampler, count - static_cast<int>(text.size()), [&](std::int32_t token) {
        text.push_back(token);
        return true;
      });
      EXPECT_EQ(session.tokens(), static_cast<std::int64_t>(prompt.size() + text.size()) - 1);
    }
    EXPECT_EQ(session.steps(), count);
    figures = drafting.figures();
    EXPECT_EQ(figures.tokens, count);
    return text;
  }

  // With costs of nothing, so that as much is drafted as can be.
  static std::vector<DraftOptions> sources() {
    std::vector<DraftOptions> all;
    for (const char* text :
         {"lookup", "self:sparq:r=8:k=48", "self:topk:k=24", "self:window:k=20", "lookup,self:sparq:r=4:k=32"}) {
      all.push_back(parse_draft(text));
      all.back().costs = DraftCosts{0.05, 0.05};
    }
    return all;
  }
};

TEST_F(DraftingTest, TheTextIsThatOfSingleSteps) {
  test::TemporaryFolder folder;
  const auto hybrid = test::write_hybrid_model(folder.path() / "model", {.layers = 4});
  std::int64_t accepted = 0, drafted_tokens = 0;
  for (const std::filesystem::path& path :
       {goldens / "llama", goldens / "mistral-sliding", goldens / "gemma3", goldens / "gemma4", hybrid}) {
    const Model of(path, *backend);
    auto prompt = random_tokens(60, std::min(of.config().vocab_size, 100), 4);
    const std::vector<std::int32_t> again(prompt.begin(), prompt.begin() + 40);  // a passage that occurs twice
    prompt.insert(prompt.end(), again.begin(), again.end());
    SamplerOptions warm{.temperature = 0.8f, .top_k = 20, .seed = 5};
    SamplerOptions ruled{.temperature = 0.7f, .seed = 3};
    ruled.rules.repetition_penalty = 1.2f;
    for (const SamplerOptions& sampling : {SamplerOptions{}, warm, ruled}) {
      const auto expected = one_by_one(of, prompt, sampling, 90);
      for (const DraftOptions& source : sources()) {
        DraftFigures figures;
        ASSERT_EQ(drafted(of, prompt, {source, sampling}, 90, figures), expected) << path;
        accepted += figures.accepted;
        drafted_tokens += figures.drafted;
      }
    }
  }
  EXPECT_GT(accepted, 500) << "of " << drafted_tokens << ": there was something to accept";
  EXPECT_LT(accepted, drafted_tokens) << "and to take back";
}

TEST_F(DraftingTest, ATextThatIsStoppedLeavesTheSessionAtItsEnd) {
  const auto prompt = random_tokens(80, model.config().vocab_size, 4);
  for (const DraftOptions& source : sources()) {
    Session session(model, arena, options), alone(model, arena, options);
    for (Session* each : {&session, &alone}) each->append(std::span(prompt).first(79));
    Sampler greedy({}), greedy_alone({});
    Drafting drafting(source);
    drafting.read(prompt);
    if (source.self) session.set_draft_method(make_method(*source.self, model.config().head_dim));
    std::vector<std::int32_t> text;
    while (text.size() < 23) {
      drafting.next(session, greedy, 100, [&](std::int32_t token) {
        text.push_back(token);
        return text.size() < 23;
      });
    }
    ASSERT_EQ(text.size(), 23u);
    std::int32_t token = prompt.back();
    for (const std::int32_t drawn : text) {
      token = alone.next(token, greedy_alone);
      ASSERT_EQ(token, drawn);
    }
    ASSERT_EQ(session.tokens(), alone.tokens());
    EXPECT_EQ(session.step(7), alone.step(7));
  }
}

TEST_F(DraftingTest, WhatIsDraftedAndThrownAwayLeavesNothing) {
  const auto prompt = random_tokens(100, model.config().vocab_size, 8);
  Session session(model, arena, options), alone(model, arena, options);
  for (Session* each : {&session, &alone}) each->append(prompt);
  session.set_draft_method(make_method(method("sparq:r=4:k=30"), model.config().head_dim));
  Sampler greedy({});
  {
    const Session::Drafts drafts(session);
    for (int i = 0; i < 60; ++i) session.draft(i, greedy);  // past the end of several blocks
    EXPECT_EQ(session.tokens(), 160);
  }
  EXPECT_EQ(session.tokens(), 100);
  EXPECT_EQ(session.steps(), 0);
  EXPECT_EQ(session.counters().elements, 0u);
  EXPECT_GT(session.draft_counters().elements, 0u);
  EXPECT_EQ(session.cache().spilled_bytes(), alone.cache().spilled_bytes());
  for (int i = 0; i < 40; ++i) ASSERT_EQ(session.step(i), alone.step(i)) << i;
}

// The tokens drawn for many seeds are spread as the distribution that they are drawn from. By chi-square with 9 degrees
// of freedom: above 27.9 in one of a thousand runs.
TEST_F(DraftingTest, DrawnTokensAreSpreadAsTheModelSays) {
  const auto prompt = random_tokens(40, model.config().vocab_size, 8);
  Session root(model, arena, options);
  root.append(std::span(prompt).first(39));
  const std::vector<float> logits = root.fork().step(prompt.back());
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(
      order, [&](auto a, auto b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
  order.resize(10);
  double whole = 0;
  std::map<std::int32_t, double> expected;
  for (const std::int32_t token : order)
    whole += expected[token] = std::exp(static_cast<double>(logits[static_cast<std::size_t>(token)]));
  constexpr int draws = 2000;
  std::map<std::int32_t, int> seen;
  DraftOptions source = parse_draft("self:window:k=8");
  source.costs = DraftCosts{0.01, 0.01};
  source.most = 1;
  root.set_draft_method(make_method(*source.self, model.config().head_dim));
  for (int seed = 0; seed < draws; ++seed) {
    Session session = root.fork();
    Sampler sampler({.temperature = 1, .top_k = 10, .seed = static_cast<std::uint64_t>(seed)});
    Drafting drafting(source);
    drafting.read(prompt);
    int taken = 0;
    drafting.next(session, sampler, 2, [&](std::int32_t token) {
      if (taken++ == 0) ++seen[token];
      return true;
    });
  }
  double chi_square = 0;
  for (const auto& [token, weight] : expected) {
    const double mean = draws * weight / whole;
    chi_square += (seen[token] - mean) * (seen[token] - mean) / mean;
  }
  EXPECT_LT(chi_square, 27.9);
}

}  // namespace
}  // namespace hayloft::runtime
