#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text_file.h"
#include "runtime/eval/ruler/random.h"
#include "runtime/eval/ruler/ruler.h"

// Questions about documents, the one with the answer among others: SQuAD and HotpotQA, from files the user brings.
namespace hayloft::runtime::eval {
namespace {

using nlohmann::json;

struct HopQuestion {
  std::string text;
  std::vector<std::string> answers;
  std::vector<std::int64_t> gold;     // documents that are always there
  std::vector<std::int64_t> related;  // taken before any others
};

struct Questions {
  std::vector<std::string> documents;
  std::vector<HopQuestion> questions;
};

// Returns what `read` makes of a JSON file; what is missing or mistyped in it is an Error that names the file.
template <class Read>
Questions read_questions(const std::filesystem::path& path, const char* option, const char* shape, Read read) {
  const std::string text = offload::read_text_file(option, path);
  Questions all;
  try {
    read(json::parse(text), all);
  } catch (const json::exception& error) {
    fail("{} {}: not a file of {}: {}", option, path.string(), shape, printable(error.what()));
  }
  for (const HopQuestion& question : all.questions) {
    const auto blank = [](const std::string& answer) { return answer.find_first_not_of(" \t\r\n") == answer.npos; };
    if (std::ranges::any_of(question.answers, blank)) {
      fail("{} {}: an answer to \"{}\" is blank, and would be found in whatever a model says", option, path.string(),
           printable(question.text));
    }
  }
  if (all.questions.empty()) fail("{} {}: there is no question with an answer in it", option, path.string());
  return all;
}

void add_once(std::vector<std::string>& list, std::string item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
}

void read_squad(const json& file, Questions& all) {
  for (const json& article : file.at("data")) {
    const auto first = static_cast<std::int64_t>(all.documents.size());
    const auto count = static_cast<std::int64_t>(article.at("paragraphs").size());
    for (const json& paragraph : article.at("paragraphs")) {
      const auto gold = static_cast<std::int64_t>(all.documents.size());
      all.documents.push_back(paragraph.at("context").get<std::string>());
      for (const json& asked : paragraph.at("qas")) {
        if (asked.value("is_impossible", false)) continue;
        HopQuestion question{asked.at("question").get<std::string>(), {}, {gold}, {}};
        for (const json& answer : asked.at("answers")) add_once(question.answers, answer.at("text").get<std::string>());
        if (question.answers.empty()) continue;
        for (std::int64_t other = first; other < first + count; ++other) {
          if (other != gold) question.related.push_back(other);
        }
        all.questions.push_back(std::move(question));
      }
    }
  }
}

void read_hotpotqa(const json& file, Questions& all) {
  std::map<std::string, std::int64_t> known;
  for (const json& asked : file) {
    HopQuestion question{asked.at("question").get<std::string>(), {asked.at("answer").get<std::string>()}, {}, {}};
    for (const json& paragraph : asked.at("context")) {
      std::string document = paragraph.at(0).get<std::string>() + "\n";
      for (const json& sentence : paragraph.at(1)) document += sentence.get<std::string>();
      const auto [place, added] = known.emplace(document, static_cast<std::int64_t>(all.documents.size()));
      if (added) all.documents.push_back(std::move(document));
      question.gold.push_back(place->second);
    }
    all.questions.push_back(std::move(question));
  }
}

class QaGenerator : public RulerGenerator {
 public:
  explicit QaGenerator(Questions all) : all_(std::move(all)) {}

  RulerText write(int sample, std::int64_t units, std::mt19937_64 random) override {
    const HopQuestion& question = all_.questions[static_cast<std::size_t>(sample)];
    const std::vector<std::int64_t> documents = pick(question, units, random);
    RulerText text;
    text.input = "Answer the question with the help of the documents. Reply with nothing but the answer itself.\n\n";
    for (std::size_t i = 0; i < documents.size(); ++i) {
      text.input += fmt::format("Document {}:\n{}\n\n", i + 1, all_.documents[static_cast<std::size_t>(documents[i])]);
    }
    text.input += fmt::format("Question: {}", question.text);
    text.answer_prefix = " Answer:";
    text.outputs = question.answers;
    return text;
  }

  std::int64_t least_units(int sample) const override {
    return static_cast<std::int64_t>(all_.questions[static_cast<std::size_t>(sample)].gold.size());
  }
  std::int64_t units_to_drop() const override { return 10; }
  int samples() const override {
    return static_cast<int>(std::min<std::size_t>(all_.questions.size(), std::numeric_limits<int>::max()));
  }

 private:
  // `units` documents, shuffled: those with the answer, related ones, then any others; all of them over again where a
  // file has too few.
  std::vector<std::int64_t> pick(const HopQuestion& question, std::int64_t units, std::mt19937_64& random) const {
    std::vector<std::int64_t> documents = question.gold;
    std::vector<std::int64_t> related = question.related;
    shuffle(related, random);
    std::vector<bool> taken(all_.documents.size());
    for (const std::int64_t document : documents) taken[static_cast<std::size_t>(document)] = true;
    const auto take = [&](const std::vector<std::int64_t>& from) {
      for (const std::int64_t document : from) {
        if (static_cast<std::int64_t>(documents.size()) == units) return;
        documents.push_back(document);
        taken[static_cast<std::size_t>(document)] = true;
      }
    };
    take(related);
    std::vector<std::int64_t> others;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (!taken[i]) others.push_back(static_cast<std::int64_t>(i));
    }
    shuffle(others, random);
    take(others);
    const std::vector<std::int64_t> all = documents;
    while (static_cast<std::int64_t>(documents.size()) < units) take(all);
    shuffle(documents, random);
    return documents;
  }

  Questions all_;
};

}  // namespace

std::unique_ptr<RulerGenerator> make_ruler_squad(const std::filesystem::path& file) {
  return std::make_unique<QaGenerator>(read_questions(file, "--squad", "SQuAD's shape", read_squad));
}

std::unique_ptr<RulerGenerator> make_ruler_hotpotqa(const std::filesystem::path& file) {
  return std::make_unique<QaGenerator>(read_questions(file, "--hotpotqa", "HotpotQA's shape", read_hotpotqa));
}

}  // namespace hayloft::runtime::eval
