#include "offload/text/text_check.h"

#include <gtest/gtest.h>

#include "offload/error.h"
#include "offload/text_file.h"
#include "tests/support/temporary_folder.h"

namespace hayloft {
namespace {

using namespace std::string_literals;

std::string refusal_of(const std::string& bytes) {
  try {
    checked_text("in.txt", bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TextCheck, TextStaysAsItIsButForItsMark) {
  EXPECT_EQ(checked_text("in", "a\r\nb\n\ncaf\u00e9 \U0001f33e\t"), "a\r\nb\n\ncaf\u00e9 \U0001f33e\t");
  EXPECT_EQ(checked_text("in", "\xEF\xBB\xBFhay"), "hay");
  EXPECT_EQ(checked_text("in", "\xEF\xBB\xBF\xEF\xBB\xBFhay"), "\xEF\xBB\xBFhay");  // the second is a character
  EXPECT_EQ(checked_text("in", ""), "");
  EXPECT_EQ(checked_text("in", "\xEF\xBB\xBF"), "");
  EXPECT_EQ(checked_text("in", "hay\xEF\xBB\xBF"), "hay\xEF\xBB\xBF");
}

// The encodings are those of Python's codecs for "h\u00e9y\n".
TEST(TextCheck, OtherEncodingsAreRefusedByNameWithARemedy) {
  EXPECT_NE(refusal_of("\xFF\xFEh\0\xE9\0y\0\n\0"s).find("in.txt: is UTF-16"), std::string::npos);
  EXPECT_NE(refusal_of("\xFE\xFF\0h\0\xE9\0y\0\n"s).find("iconv -f UTF-16 -t UTF-8"), std::string::npos);
  EXPECT_NE(refusal_of("\xFF\xFE\0\0h\0\0\0"s).find("is UTF-32"), std::string::npos);
  EXPECT_NE(refusal_of("\0\0\xFE\xFF\0\0\0h"s).find("is UTF-32"), std::string::npos);
  EXPECT_NE(refusal_of("h\0a\0y\0\n\0"s).find("is UTF-16LE"), std::string::npos);
  EXPECT_NE(refusal_of("\0h\0a\0y\0\n"s).find("is UTF-16BE"), std::string::npos);
  const std::string latin = refusal_of("hay\nh\xE9y\n");
  EXPECT_NE(latin.find("is not UTF-8: byte 5 (line 2) is 0xE9"), std::string::npos) << latin;
  EXPECT_NE(latin.find("iconv -f LATIN1 -t UTF-8"), std::string::npos) << latin;
  EXPECT_NE(refusal_of("hay\xE2\x82").find("byte 3"), std::string::npos);      // cut within a character
  EXPECT_NE(refusal_of("\xED\xA0\x80").find("not UTF-8"), std::string::npos);  // a surrogate
  EXPECT_NE(refusal_of("\xC0\xAF").find("not UTF-8"), std::string::npos);      // overlong
  EXPECT_NE(refusal_of("hay and straw\0 and more of it"s).find("byte 13 (line 1) is zero"), std::string::npos);
}

TEST(TextCheck, FilesAreReadByTheSameRule) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(offload::read_text_file("--file", folder.write("a", "\xEF\xBB\xBFh\u00e9y\r\n")), "h\u00e9y\r\n");
  EXPECT_EQ(offload::read_file_bytes("--file", folder.write("b", "h\xE9y")), "h\xE9y");
  EXPECT_THROW(offload::read_text_file("--file", folder.write("c", "h\xE9y")), Error);
}

TEST(TextCheck, APointerOfGitLfsIsNoText) {
  const test::TemporaryFolder folder;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 98362432\n";
  try {
    offload::read_text_file("--file", folder.write("book.txt", pointer));
    FAIL();
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_NE(said.find("Git LFS pointer"), std::string::npos) << said;
    EXPECT_NE(said.find("of 98362432 bytes"), std::string::npos) << said;
    EXPECT_NE(said.find("git lfs pull"), std::string::npos) << said;
  }
}

TEST(ErrorMessage, IsBoundedAndKeepsItsEnd) {
  const std::string long_part(1 << 20, 'x');
  try {
    fail("begins {} and ends", "\u00e9" + long_part + "\u00e9");
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_LT(said.size(), 4100u);
    EXPECT_TRUE(said.starts_with("begins \u00e9x")) << said.substr(0, 20);
    EXPECT_TRUE(said.ends_with("x\u00e9 and ends"));
    EXPECT_NE(said.find("bytes left out]"), std::string::npos);
  }
  EXPECT_EQ(bounded_message(std::string(4000, 'x')), std::string(4000, 'x'));
  std::string wide;
  for (int i = 0; i < 3000; ++i) wide += "\u20ac";  // cut between characters only
  EXPECT_TRUE(is_text(bounded_message(wide)));
  EXPECT_TRUE(is_text(bounded_message("x" + wide + "x")));
}

}  // namespace
}  // namespace hayloft
