#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text_file.h"
#include "runtime/eval/papers/sample_source.h"
#include "runtime/eval/ruler/random.h"

// SQuAD with one shot: the paragraph that a question is about among seven others, in any order, then a question about
// the same paragraph with its answer, then the question.
namespace hayloft::runtime::eval {
namespace {

using nlohmann::json;

constexpr std::size_t kOthers = 7;
constexpr int squad_answer_tokens = 30, squad_spare_tokens = 5;

struct Question {
  std::string text;
  std::vector<std::string> answers;
  std::size_t paragraph = 0;
};
struct Paragraph {
  std::string title, text;
  std::vector<std::size_t> questions;
  std::string line() const { return fmt::format("Title: {}. Background: {}", title, text); }
};

class Squad : public PaperSource {
 public:
  explicit Squad(const std::filesystem::path& file) {
    const std::string text = offload::read_text_file("--squad", file);
    try {
      read(json::parse(text));
    } catch (const json::exception& error) {
      fail("--squad {}: not a file of SQuAD's shape: {}", file.string(), printable(error.what()));
    }
    if (questions_.size() < 2 || paragraphs_.size() <= kOthers) {
      fail("--squad {}: {} questions on {} paragraphs; two on {} are needed at least", file.string(), questions_.size(),
           paragraphs_.size(), kOthers + 1);
    }
  }

  int samples() const override { return static_cast<int>(questions_.size()); }

  PaperText sample(int number, std::mt19937_64& random) const override {
    const auto own = static_cast<std::size_t>(number);
    const Question& question = questions_[own];
    const Paragraph& paragraph = paragraphs_[question.paragraph];
    std::vector<std::string> lines{paragraph.line()};
    for (std::int64_t at : choose(static_cast<std::int64_t>(paragraphs_.size()) - 1, kOthers, random)) {
      const auto other = static_cast<std::size_t>(at);
      lines.push_back(paragraphs_[other < question.paragraph ? other : other + 1].line());
    }
    shuffle(lines, random);
    std::string prompt;
    for (const std::string& line : lines) prompt += line + "\n";
    prompt +=
        fmt::format("From what you've just read about {}, please answer the following questions.\n", paragraph.title);
    const Question& shot = questions_[shot_for(own, random)];
    const auto shorter = [](const std::string& a, const std::string& b) { return characters(a) < characters(b); };
    prompt += fmt::format("Question: {}\nAnswer: {}\n", shot.text,
                          *std::min_element(shot.answers.begin(), shot.answers.end(), shorter));
    prompt += fmt::format("Question: {}\nAnswer:", question.text);
    return {std::move(prompt), question.answers, squad_answer_tokens, squad_spare_tokens};
  }

 private:
  void read(const json& file) {
    for (const json& article : file.at("data")) {
      auto title = article.value("title", std::string("this"));
      std::replace(title.begin(), title.end(), '_', ' ');
      for (const json& part : article.at("paragraphs")) {
        Paragraph paragraph{title, part.at("context").get<std::string>(), {}};
        for (const json& asked : part.at("qas")) {
          if (asked.value("is_impossible", false)) continue;
          Question question{asked.at("question").get<std::string>(), {}, paragraphs_.size()};
          for (const json& answer : asked.at("answers")) {
            question.answers.push_back(answer.at("text").get<std::string>());
          }
          if (question.answers.empty()) continue;
          paragraph.questions.push_back(questions_.size());
          questions_.push_back(std::move(question));
        }
        paragraphs_.push_back(std::move(paragraph));
      }
    }
  }

  // Another question, of the same paragraph if there is one.
  std::size_t shot_for(std::size_t own, std::mt19937_64& random) const {
    const std::vector<std::size_t>& near = paragraphs_[questions_[own].paragraph].questions;
    if (near.size() > 1) {
      const std::size_t at = draw(random, near.size() - 1);
      return near[at] == own ? near.back() : near[at];
    }
    const std::size_t at = draw(random, questions_.size() - 1);
    return at < own ? at : at + 1;
  }

  std::vector<Paragraph> paragraphs_;
  std::vector<Question> questions_;
};

}  // namespace

std::unique_ptr<PaperSource> read_sparq_squad(const std::filesystem::path& file) {
  return std::make_unique<Squad>(file);
}

}  // namespace hayloft::runtime::eval
