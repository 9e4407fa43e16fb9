#include "runtime/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "offload/error.h"

namespace hayloft::runtime {
namespace {

// Below U+0300 every character is its own NFC and stays so before any character below U+0300.
bool is_nfc_at_sight(std::string_view text) {
  constexpr unsigned char kLeadOfU0300 = 0xCC;
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < kLeadOfU0300; });
}

// utf8proc's own canonical ordering is a bubble sort, quadratic in a run of marks; hence a stable sort of each run.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto combining_class = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto at = codes.begin(); at != codes.end();) {
    if (combining_class(*at) == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, codes.end(), [&](auto code) { return combining_class(code) == 0; });
    std::stable_sort(at, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
}

}  // namespace

std::string normalize(std::string_view text, NormalForm form) {
  if (form == NormalForm::nfc && is_nfc_at_sight(text)) return std::string(text);
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
  const auto decompose =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0));

  constexpr utf8proc_ssize_t kLongestDecomposition = 32;  // Unicode's longest has 18 characters
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    at += next.length;
    utf8proc_int32_t parts[kLongestDecomposition];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(next.code), parts, kLongestDecomposition,
                                               decompose, &boundary);
    if (count < 0 || count > kLongestDecomposition) {
      fail("Unicode normalization failed at U+{:04X}: {}", static_cast<std::uint32_t>(next.code),
           count < 0 ? utf8proc_errmsg(count) : "its decomposition is too long");
    }
    codes.insert(codes.end(), parts, parts + count);
  }
  order_marks(codes);
  if (composed) {
    const auto length = utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                                                 static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    codes.resize(static_cast<std::size_t>(length));
  }
  std::string out;
  out.reserve(text.size());
  for (const auto code : codes) append_utf8(static_cast<char32_t>(code), out);
  return out;
}

std::string lowercase(std::string_view text) {
  constexpr char32_t kCapitalIWithDot = 0x130;  // the one character whose lower case is two
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = utf8_at(text, at);
    at += next.length;
    if (next.code == kCapitalIWithDot) {
      out += "i\xCC\x87";
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(next.code))), out);
    }
  }
  return out;
}

bool is_white_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool is_word_character(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // circled and squared letters
      return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
    default:
      return code == 0x200C || code == 0x200D;
  }
}

}  // namespace hayloft::runtime
