#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/eval/ruler/ruler.h"

// RULER's scoring: a reference counts when it stands anywhere in the answer, in either case. Nothing is taken off for
// what else the answer says.
namespace hayloft::runtime::eval {

// An answer as it is scored: white space at its ends taken off, the bytes 0x00 to 0x1f as newlines.
std::string cleaned_answer(std::string_view answer);

// 0..1, of a cleaned answer: the share of the references found, or with Credit::any 1 for the first of them. Case is
// Unicode's; bytes that are not UTF-8 count as U+FFFD.
double ruler_score(std::string_view answer, const std::vector<std::string>& references, Credit credit);

}  // namespace hayloft::runtime::eval
