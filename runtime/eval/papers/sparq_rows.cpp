#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "offload/error.h"
#include "offload/json_file.h"
#include "offload/text_file.h"
#include "runtime/eval/needle/haystack.h"
#include "runtime/eval/papers/sample_source.h"

// TriviaQA and CNN/DailyMail, as the datasets library writes their rows (Dataset.to_json): a JSON object a line.
namespace hayloft::runtime::eval {
namespace {

using nlohmann::json;

constexpr std::size_t kLeast = 4000, kMost = 8000;  // characters of a document
constexpr int kAnswerTokens = 30, kSpareTokens = 5;
constexpr int kSummaryTokens = 128;

bool usable(const std::string& document) {
  if (document.size() < kLeast || document.size() > 4 * kMost) return false;
  const std::size_t length = characters(document);
  return kLeast <= length && length <= kMost;
}

// Calls `read` with each object; what is missing or mistyped in one is an Error that names file and line.
void for_each_row(const char* option, const std::filesystem::path& file,
                  const std::function<void(const json& row)>& read) {
  std::istringstream lines(offload::read_text_file(option, file));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{} {}, line {}", option, file.string(), number);
    const json row = json::parse(line, nullptr, false);
    if (row.is_discarded() || !row.is_object()) fail("{}: no JSON object; one row a line is wanted", where);
    try {
      read(row);
    } catch (const json::exception& error) {
      fail("{}: {}", where, printable(error.what()));
    }
  }
}

struct TriviaRow {
  std::string question;
  std::vector<std::string> answers;
  std::vector<std::string> documents;  // of a length that is wanted
};

class TriviaQa : public PaperSource {
 public:
  explicit TriviaQa(const std::filesystem::path& file) {
    for_each_row("--triviaqa", file, [&](const json& row) {
      TriviaRow asked{row.at("question").get<std::string>(), {}, {}};
      asked.answers = row.at("answer").at("aliases").get<std::vector<std::string>>();
      for (const json& found : row.at("search_results").at("search_context")) {
        const auto document = found.get<std::string>();
        if (usable(document)) asked.documents.push_back(document);
      }
      if (!asked.documents.empty() && !asked.answers.empty()) rows_.push_back(std::move(asked));
    });
    if (rows_.empty()) {
      fail("--triviaqa {}: no question in it has a document of {} to {} characters", file.string(), kLeast, kMost);
    }
  }

  int samples() const override { return static_cast<int>(rows_.size()); }
  PaperText sample(int number, std::mt19937_64& random) const override {
    const TriviaRow& asked = rows_[static_cast<std::size_t>(number)];
    const std::string& document = asked.documents[draw(random, asked.documents.size())];
    return {fmt::format("{}\nQuestion: {}\nAnswer:", document, asked.question), asked.answers, kAnswerTokens,
            kSpareTokens};
  }

 private:
  std::vector<TriviaRow> rows_;
};

class Summaries : public PaperSource {
 public:
  explicit Summaries(const std::filesystem::path& file) {
    for_each_row("--cnn-dailymail", file, [&](const json& row) {
      std::pair<std::string, std::string> article(row.at("article").get<std::string>(),
                                                  row.at("highlights").get<std::string>());
      if (usable(article.first)) rows_.push_back(std::move(article));
    });
    if (rows_.empty()) {
      fail("--cnn-dailymail {}: there is no article of {} to {} characters in it", file.string(), kLeast, kMost);
    }
  }

  int samples() const override { return static_cast<int>(rows_.size()); }
  PaperText sample(int number, std::mt19937_64&) const override {
    const auto& [article, highlights] = rows_[static_cast<std::size_t>(number)];
    return {fmt::format("Article: {}\nSummary:", article), {highlights}, kSummaryTokens};
  }

 private:
  std::vector<std::pair<std::string, std::string>> rows_;
};

}  // namespace

std::unique_ptr<PaperSource> read_sparq_triviaqa(const std::filesystem::path& file) {
  return std::make_unique<TriviaQa>(file);
}

std::unique_ptr<PaperSource> read_sparq_summaries(const std::filesystem::path& file) {
  return std::make_unique<Summaries>(file);
}

}  // namespace hayloft::runtime::eval
