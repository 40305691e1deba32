// UTF-8, printable lines, durations for people.
#include "base/text.h"

#include <gtest/gtest.h>

namespace hvd {
namespace {

constexpr size_t kGood = std::string_view::npos;

TEST(Utf8, IsToldFromOtherBytes) {
  for (const char* good : {"", "name", "größe", "重み", "\xf4\x8f\xbf\xbf", "\xee\x80\x80"})
    EXPECT_EQ(find_bad_utf8(good), kGood) << good;
  EXPECT_EQ(find_bad_utf8("ab\xff"), 2u);
  EXPECT_EQ(find_bad_utf8("a\xc0\xaf"), 1u) << "longer than need be";
  EXPECT_EQ(find_bad_utf8("\xe0\x80\xaf"), 0u) << "longer than need be";
  EXPECT_EQ(find_bad_utf8("\xed\xa0\x80"), 0u) << "a surrogate";
  EXPECT_EQ(find_bad_utf8("\xf4\x90\x80\x80"), 0u) << "beyond U+10FFFF";
  EXPECT_EQ(find_bad_utf8("x\xe2\x82"), 1u) << "cut off";
  EXPECT_EQ(find_bad_utf8("\x80"), 0u);
}

TEST(Printable, KeepsOneLineOfText) {
  EXPECT_EQ(printable("größe"), "größe");
  EXPECT_EQ(printable("a\nb\tc\x1b[0m\x7f"), "a b c [0m ");
  EXPECT_EQ(printable("a\xc2\x9bz"), "a z") << "C1: a terminal may take it for ESC [";
  EXPECT_EQ(printable("a\xff\xfez"), "a??z");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a b");
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("aö", 2), "a");
  EXPECT_EQ(printable("aö", 3), "aö");
  EXPECT_EQ(printable("abc", 0), "");
}

TEST(SecondsText, HasThreeDigits) {
  EXPECT_EQ(seconds_text(seconds(5.03619)), "5.04");
  EXPECT_EQ(seconds_text(milliseconds(3)), "0.003");
  EXPECT_EQ(seconds_text(seconds(600)), "600");
  EXPECT_EQ(seconds_text(seconds(86400.4)), "86400");
  EXPECT_EQ(seconds_text(Duration(0)), "0");
}

}  // namespace
}  // namespace hvd
