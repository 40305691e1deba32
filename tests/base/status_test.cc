// Statuses and their conversion to hvd_error.
#include "base/status.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

namespace hvd {
namespace {

hvd_error written(const Status& status) {
  hvd_error error = HVD_ERROR_INIT;
  status.write_to(&error);
  return error;
}

TEST(Status, WritesEveryField) {
  Status status(HVD_PEER_LOST, "rank 2 on host b lost");
  status.at_rank(2).in_generation(7);
  status.vendor_code = -5;
  status.backend = "gloo";
  const hvd_error error = written(status);
  EXPECT_EQ(error.struct_size, sizeof(hvd_error));
  EXPECT_EQ(error.status, HVD_PEER_LOST);
  EXPECT_EQ(error.rank, 2);
  EXPECT_EQ(error.generation, 7U);
  EXPECT_EQ(error.vendor_code, -5);
  EXPECT_STREQ(error.backend, "gloo");
  EXPECT_STREQ(error.message, "rank 2 on host b lost");

  const Status back = Status::from(HVD_PEER_LOST, error);
  EXPECT_EQ(back.message, status.message);
  EXPECT_EQ(back.rank, 2);
  EXPECT_EQ(back.generation, 7U);
  EXPECT_EQ(back.vendor_code, -5);
  EXPECT_EQ(back.backend, "gloo");
}

TEST(Status, NullIsAllowed) { Status(HVD_INVALID, "x").write_to(nullptr); }

TEST(Status, NeverWritesFurtherThanTheCallersStruct) {
  for (size_t size = 0; size <= sizeof(hvd_error); ++size) {
    hvd_error error;
    std::memset(&error, 0xA5, sizeof(error));
    error.struct_size = size;
    Status(HVD_INVALID, std::string(1000, 'm')).write_to(&error);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&error);
    for (size_t i = std::max(size, sizeof(size_t)); i < sizeof(error); ++i)
      ASSERT_EQ(bytes[i], 0xA5) << size << " " << i;
    EXPECT_EQ(error.struct_size, size);
  }
}

TEST(Status, CutsLongMessagesBetweenCharacters) {
  const size_t room = sizeof(hvd_error::message) - 1;
  const std::string characters[] = {"\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};  // of 2, 3 and 4 bytes
  for (const std::string& character : characters) {
    for (size_t before = room - 5; before <= room; ++before) {
      const std::string message = std::string(before, 'a') + character + "tail";
      const std::string cut = written(Status(HVD_INVALID, message)).message;
      const size_t whole = before + character.size() <= room ? before + character.size() : before;
      EXPECT_EQ(cut.substr(0, whole), message.substr(0, whole));
      if (whole == before) { EXPECT_EQ(cut.size(), before) << character.size() << " bytes at " << before; }
    }
  }
  const std::string exact(room, 'b');
  EXPECT_EQ(written(Status(HVD_INVALID, exact)).message, exact);
  EXPECT_EQ(written(Status(HVD_INVALID, exact + "c")).message, exact);
}

TEST(Status, LongBackendNamesAreCut) {
  Status status(HVD_INVALID, "x");
  status.backend = std::string(100, 'g');
  EXPECT_EQ(written(status).backend, std::string(sizeof(hvd_error::backend) - 1, 'g'));
}

TEST(Status, EveryCodeHasItsName) {
  std::set<std::string> names;
  for (hvd_status code = HVD_OK; code <= HVD_INTERNAL; ++code) {
    const std::string name = status_name(code);
    EXPECT_EQ(name.rfind("HVD_", 0), 0U) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_STREQ(status_name(-1), "unknown status");
  EXPECT_STREQ(status_name(HVD_INTERNAL + 1), "unknown status");
}

TEST(Error, IsAnExceptionThatSaysItsMessage) {
  const Error error(HVD_MISMATCH, "shapes differ");
  EXPECT_STREQ(error.what(), "shapes differ");
  EXPECT_EQ(error.status().code, HVD_MISMATCH);
}

}  // namespace
}  // namespace hvd
