#include "runtime/serve/answer_parts.h"

#include <iterator>
#include <utility>

namespace hayloft::runtime::serve {
namespace {

void append(std::vector<AnswerPart>& parts, std::vector<AnswerPart> more) {
  parts.insert(parts.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

std::vector<AnswerPart> parts_of(AnswerReader* reader, const GeneratedToken& token) {
  if (reader == nullptr) return {{AnswerPart::Kind::text, token.text}};
  std::vector<AnswerPart> parts;
  for (const TextRun& run : token.runs) append(parts, reader->push(run));
  return parts;
}

std::vector<AnswerPart> last_parts(AnswerReader* reader, const std::string& rest) {
  if (reader == nullptr) return {{AnswerPart::Kind::text, rest}};
  std::vector<AnswerPart> parts = reader->push({rest, false});
  append(parts, reader->finish());
  return parts;
}

}  // namespace hayloft::runtime::serve
