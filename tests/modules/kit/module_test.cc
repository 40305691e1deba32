// A module's table made from a class: what goes in is checked, what goes wrong comes out as a status.
#include <gtest/gtest.h>

#include <new>

#include "hvd/backend.hpp"

namespace hvdkit {
namespace {

// Records what reaches it; throws what `next` says.
class Plain {
 public:
  static constexpr const char* kName = "plain";
  static inline std::string* unavailable = nullptr;
  static inline int alive = 0;

  static hvd_backend_description describe() {
    if (unavailable != nullptr) throw Failure(HVD_UNAVAILABLE, *unavailable);
    hvd_backend_description description = description_of(kName, "1.2", HVD_MEMORY_HOST);
    description.messages = 1;
    return description;
  }

  Plain(const hvd_backend_host&, const Options& options) : segment_(options.integer("segment", 1, 1, 9)) {
    ++alive;
  }
  ~Plain() { --alive; }

  std::vector<uint8_t> address() const { return {1, 2, 3, 4, 5}; }
  void connect(const hvd_backend_group& group) {
    throw Failure(HVD_TIMEOUT, "rank " + std::to_string(group.size - 1) + " did not come", group.size - 1,
                  77);
  }
  void submit(const hvd_backend_op&) { throw std::bad_alloc(); }
  void send_message(int32_t, const void*, size_t) { throw 7; }  // NOLINT: no exception class at all
  void abort(uint64_t) { throw Failure(HVD_INTERNAL, "has nowhere to go"); }
  void disconnect() { throw std::bad_alloc(); }
  std::string detail() const { return "segments of " + std::to_string(segment_); }

 private:
  uint64_t segment_;
};

class Device : public Plain {
 public:
  using Plain::Plain;
  static void world(int32_t* rank, int32_t* size, Clock::time_point deadline) {
    if (deadline > Clock::now() + std::chrono::hours(25)) throw Failure(HVD_INVALID, "too far away");
    *rank = 3;
    *size = 4;
  }
  static void world_broadcast(void* data, size_t size, Clock::time_point) { std::memset(data, 9, size); }
  void* host_alloc(size_t size) { return ::operator new(size); }
  void host_free(void* memory) { ::operator delete(memory); }
  void* copy(int32_t device, void*, bool to_device, const hvd_backend_copy* copies, size_t count) {
    if (device != 1 || !to_device || count != 1) throw Failure(HVD_INVALID, "not what was asked for");
    return copies[0].target;
  }
  bool copy_wait(void* ticket, int64_t) { return ticket == this; }
  void* copy_aside(int32_t, void* stream, const hvd_backend_copy*, size_t) { return stream; }
};

hvd_backend_host host_table() {
  hvd_backend_host host{};
  host.struct_size = sizeof(host);
  return host;
}

struct Open {
  hvd_backend_table table{};
  hvd_backend_host host = host_table();
  void* instance = nullptr;
  hvd_error error = HVD_ERROR_INIT;

  template <class Class>
  static Open of(std::vector<hvd_backend_option> options = {}) {
    Open open;
    open.table.struct_size = sizeof(open.table);
    EXPECT_EQ(Module<Class>::init(HVD_BACKEND_ABI_VERSION, &open.table, &open.error), HVD_OK);
    EXPECT_EQ(open.table.open(&open.host, options.data(), options.size(), &open.instance, &open.error),
              HVD_OK)
        << open.error.message;
    return open;
  }
  std::string detail(size_t room) const {
    std::vector<char> text(room + 1, '#');
    table.detail(instance, text.data(), room);
    EXPECT_EQ(text[room], '#') << "written beyond the room";
    return text.data();
  }
};

TEST(KitModule, TableHasWhatTheClassServesAndNothingElse) {
  Open plain = Open::of<Plain>();
  EXPECT_NE(plain.table.send_message, nullptr);
  EXPECT_EQ(plain.table.world, nullptr);
  EXPECT_EQ(plain.table.world_broadcast, nullptr);
  EXPECT_EQ(plain.table.host_alloc, nullptr);
  EXPECT_EQ(plain.table.host_free, nullptr);
  EXPECT_EQ(plain.table.copy, nullptr);
  EXPECT_EQ(plain.table.copy_wait, nullptr);
  EXPECT_EQ(plain.table.copy_aside, nullptr);
  const hvd_backend_description& d = plain.table.description;
  EXPECT_STREQ(d.name, "plain");
  EXPECT_STREQ(d.version, "1.2");
  EXPECT_EQ(d.struct_size, sizeof(d));
  EXPECT_EQ(d.memories, uint64_t{1} << HVD_MEMORY_HOST);
  for (int dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype)
    EXPECT_TRUE(d.dtypes >> dtype & 1) << dtype;
  EXPECT_FALSE(d.collectives >> HVD_COLLECTIVE_JOIN & 1);
  plain.table.close(plain.instance);
  EXPECT_EQ(Plain::alive, 0);
}

TEST(KitModule, AnOlderLibraryGetsNoMoreThanItHasRoomFor) {
  alignas(hvd_backend_table) std::array<uint8_t, sizeof(hvd_backend_table)> room;
  room.fill(0xee);
  auto* table = new (room.data()) hvd_backend_table;
  const size_t size = offsetof(hvd_backend_table, world);
  std::memset(room.data() + size, 0xee, room.size() - size);
  table->struct_size = size;
  ASSERT_EQ(Module<Device>::init(HVD_BACKEND_ABI_VERSION, table, nullptr), HVD_OK);
  EXPECT_EQ(table->struct_size, size);
  EXPECT_NE(table->detail, nullptr);
  for (size_t i = size; i < room.size(); ++i) ASSERT_EQ(room[i], 0xee) << "byte " << i;
}

TEST(KitModule, InitRefusesWithReason) {
  hvd_backend_table table{};
  table.struct_size = sizeof(table);
  hvd_error error = HVD_ERROR_INIT;
  EXPECT_EQ(Module<Plain>::init(HVD_BACKEND_ABI_VERSION + 1, &table, &error), HVD_UNSUPPORTED);
  EXPECT_NE(std::string(error.message).find(std::to_string(HVD_BACKEND_ABI_VERSION + 1)), std::string::npos);
  EXPECT_EQ(table.open, nullptr);
  EXPECT_EQ(Module<Plain>::init(HVD_BACKEND_ABI_VERSION, nullptr, &error), HVD_INVALID);
  std::string reason = "libplain.so is missing";
  Plain::unavailable = &reason;
  EXPECT_EQ(Module<Plain>::init(HVD_BACKEND_ABI_VERSION, &table, &error), HVD_UNAVAILABLE);
  Plain::unavailable = nullptr;
  EXPECT_EQ(error.message, reason);
  EXPECT_STREQ(error.backend, "plain");
}

TEST(KitModule, ExceptionsBecomeStatuses) {
  Open open = Open::of<Plain>();
  hvd_backend_group group{};
  group.struct_size = sizeof(group);
  group.generation = 12;
  group.size = 3;
  EXPECT_EQ(open.table.connect(open.instance, &group, &open.error), HVD_TIMEOUT);
  EXPECT_STREQ(open.error.message, "rank 2 did not come");
  EXPECT_STREQ(open.error.backend, "plain");
  EXPECT_EQ(open.error.status, HVD_TIMEOUT);
  EXPECT_EQ(open.error.rank, 2);
  EXPECT_EQ(open.error.generation, 12U);
  EXPECT_EQ(open.error.vendor_code, 77);
  group.rank = 3;
  EXPECT_EQ(open.table.connect(open.instance, &group, &open.error), HVD_INVALID);
  EXPECT_STREQ(open.error.message, "rank 3 of 3");
  EXPECT_EQ(open.table.connect(open.instance, nullptr, &open.error), HVD_INVALID);

  const hvd_backend_op op{};
  EXPECT_EQ(open.table.submit(open.instance, &op, &open.error), HVD_INTERNAL);
  EXPECT_EQ(open.table.submit(open.instance, nullptr, &open.error), HVD_INVALID);
  EXPECT_EQ(open.table.send_message(open.instance, 0, nullptr, 0, &open.error), HVD_INTERNAL);
  open.table.abort(open.instance, 1);
  open.table.disconnect(open.instance);
  open.table.close(open.instance);
}

TEST(KitModule, ErrorsOfOlderCallersAreCutToTheirSize) {
  Open open = Open::of<Plain>();
  const hvd_backend_op op{};
  hvd_error error = HVD_ERROR_INIT;
  std::memset(error.message, '#', sizeof(error.message));
  error.struct_size = offsetof(hvd_error, message);
  EXPECT_EQ(open.table.submit(open.instance, &op, &error), HVD_INTERNAL);
  EXPECT_EQ(error.status, HVD_INTERNAL);
  EXPECT_EQ(error.message[0], '#');
  EXPECT_EQ(open.table.submit(open.instance, &op, nullptr), HVD_INTERNAL);
  open.table.close(open.instance);
}

TEST(KitModule, AddressTellsHowMuchRoomItTakes) {
  Open open = Open::of<Plain>();
  std::array<uint8_t, 8> blob{};
  size_t size = 4;
  EXPECT_EQ(open.table.address(open.instance, blob.data(), &size, &open.error), HVD_INVALID);
  EXPECT_EQ(size, 5U);
  EXPECT_EQ(blob[0], 0);
  size = blob.size();
  EXPECT_EQ(open.table.address(open.instance, blob.data(), &size, &open.error), HVD_OK);
  EXPECT_EQ(size, 5U);
  EXPECT_EQ(blob, (std::array<uint8_t, 8>{1, 2, 3, 4, 5}));
  open.table.close(open.instance);
}

TEST(KitModule, DetailIsCutAndTerminated) {
  Open open = Open::of<Plain>({{"segment", "4"}, {"nobody_knows", "x"}});
  EXPECT_EQ(open.detail(64), "segments of 4");
  EXPECT_EQ(open.detail(5), "segm");
  EXPECT_EQ(open.detail(1), "");
  open.table.detail(open.instance, nullptr, 0);
  open.table.close(open.instance);
}

TEST(KitModule, OpenNamesTheOptionThatIsWrong) {
  hvd_backend_table table{};
  table.struct_size = sizeof(table);
  ASSERT_EQ(Module<Plain>::init(HVD_BACKEND_ABI_VERSION, &table, nullptr), HVD_OK);
  const hvd_backend_host host = host_table();
  hvd_error error = HVD_ERROR_INIT;
  void* instance = nullptr;
  for (const char* value : {"0", "10", "4x", "", " 4", "-1", "99999999999999999999"}) {
    const hvd_backend_option option{"segment", value};
    EXPECT_EQ(table.open(&host, &option, 1, &instance, &error), HVD_INVALID) << value;
    EXPECT_EQ(error.message,
              "option segment is '" + std::string(value) + "': expected an integer from 1 to 9");
  }
  const hvd_backend_option nothing{"segment", nullptr};
  EXPECT_EQ(table.open(&host, &nothing, 1, &instance, &error), HVD_INVALID);
  EXPECT_EQ(table.open(&host, nullptr, 1, &instance, &error), HVD_INVALID);
  EXPECT_EQ(table.open(nullptr, nullptr, 0, &instance, &error), HVD_INVALID);
  hvd_backend_host small = host;
  small.struct_size = 8;
  EXPECT_EQ(table.open(&small, nullptr, 0, &instance, &error), HVD_INVALID);
  EXPECT_EQ(instance, nullptr);
  EXPECT_EQ(Plain::alive, 0);
}

TEST(KitModule, ServesWorldsAndCopiesOfAClassThatHasThem) {
  Open open = Open::of<Device>();
  int32_t rank = -1, size = -1;
  EXPECT_EQ(open.table.world(INT64_MAX, &rank, &size, &open.error), HVD_OK) << open.error.message;
  EXPECT_EQ(rank, 3);
  EXPECT_EQ(size, 4);
  std::array<uint8_t, 3> bytes{};
  EXPECT_EQ(open.table.world_broadcast(bytes.data(), 2, 10, &open.error), HVD_OK);
  EXPECT_EQ(bytes, (std::array<uint8_t, 3>{9, 9, 0}));
  void* memory = nullptr;
  ASSERT_EQ(open.table.host_alloc(open.instance, 16, &memory, &open.error), HVD_OK);
  const hvd_backend_copy copy{memory, nullptr, 0};
  void* ticket = nullptr;
  EXPECT_EQ(open.table.copy(open.instance, 1, nullptr, 1, &copy, 1, &ticket, &open.error), HVD_OK);
  EXPECT_EQ(ticket, memory);
  EXPECT_EQ(open.table.copy_aside(open.instance, 1, &rank, &copy, 1, &ticket, &open.error), HVD_OK);
  EXPECT_EQ(ticket, &rank);
  ticket = memory;
  EXPECT_EQ(open.table.copy_wait(open.instance, ticket, 5 * HVD_MILLISECOND, &open.error), HVD_TIMEOUT);
  EXPECT_STREQ(open.error.message, "copies between host and device have not ended within 5 ms");
  EXPECT_EQ(open.table.copy_wait(open.instance, open.instance, 5 * HVD_MILLISECOND, &open.error), HVD_OK);
  open.table.host_free(open.instance, memory);
  open.table.close(open.instance);
}

TEST(KitOptions, FlagsAreStrict) {
  const hvd_backend_option list[] = {{"a", "1"}, {"b", "false"}, {"c", "yes"}, {"d", "x"}, {"d", "true"}};
  const Options options(list, 5);
  EXPECT_TRUE(options.flag("a", false));
  EXPECT_FALSE(options.flag("b", true));
  EXPECT_TRUE(options.flag("missing", true));
  EXPECT_TRUE(options.flag("d", false));  // the last one counts
  EXPECT_EQ(options.text("missing", "fallback"), "fallback");
  EXPECT_EQ(options.integer("missing", 5, 1, 2), 5U);
  try {
    options.flag("c", true);
    FAIL() << "took 'yes'";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status, HVD_INVALID);
    EXPECT_STREQ(failure.what(), "option c is 'yes': expected 0 or 1");
  }
}

}  // namespace
}  // namespace hvdkit
