// What ranks tell each other about their memory, and who is found to share a host.
#include "local/address.h"

#include <gtest/gtest.h>

#include <random>

namespace hvd::local {
namespace {

Place place_of(int seed) {
  Place place;
  place.identity.boot[3] = 9;
  place.identity.processes = 4026531836;
  place.identity.user = 1000;
  place.process = 100 + seed;
  place.descriptor = seed;
  place.token = {0x1122334455667788, static_cast<uint64_t>(seed)};
  return place;
}

TEST(LocalAddress, ComesBackAsItWas) {
  for (const bool shares : {false, true}) {
    Address address;
    if (shares) address.place = place_of(7);
    address.payload = !shares;
    Address back;
    const Status status = decode(encode(address), &back);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(back.payload, address.payload);
    ASSERT_EQ(back.place.has_value(), shares);
    if (!shares) continue;
    EXPECT_EQ(back.place->identity, address.place->identity);
    EXPECT_EQ(back.place->process, 107);
    EXPECT_EQ(back.place->descriptor, 7);
    EXPECT_EQ(back.place->token, address.place->token);
  }
}

TEST(LocalAddress, EveryTruncationAndEveryAdditionIsRefused) {
  Address address;
  address.place = place_of(1);
  std::vector<uint8_t> bytes = encode(address);
  for (size_t size = 0; size < bytes.size(); ++size) {
    Address back;
    const Status status = decode(std::span(bytes).first(size), &back);
    EXPECT_EQ(status.code, HVD_INVALID) << size;
    EXPECT_FALSE(status.message.empty());
  }
  bytes.push_back(0);
  Address back;
  EXPECT_EQ(decode(bytes, &back).code, HVD_INVALID);
}

TEST(LocalAddress, AnotherAddressIsNamedAsThat) {
  Address back;
  const std::vector<uint8_t> foreign(40, 0x7f);
  const Status status = decode(foreign, &back);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("shared memory"), std::string::npos) << status.message;
}

TEST(LocalAddress, TellsForWhatMemoryIsShared) {
  const Offer host{"tcp", "", 1, 1, 1, {1, 2, 3}};
  EXPECT_EQ(shared_by({host}), "off");
  EXPECT_EQ(shared_by({host, {kRow, "", 0, 0, 0, encode({})}}), "on");
  EXPECT_EQ(shared_by({host, {kRow, "", 0, 0, 0, encode({place_of(1), false})}}), "messages");
  EXPECT_EQ(shared_by({host, {kRow, "", 0, 0, 0, {1, 2, 3}}}), "off");
}

TEST(LocalAddress, MutationsHarmNobody) {
  std::mt19937 random(11);
  Address address;
  address.place = place_of(1);
  const std::vector<uint8_t> good = encode(address);
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bad = good;
    for (int i = 0; i < 1 + round % 4; ++i) bad[random() % bad.size()] = static_cast<uint8_t>(random());
    Address back;
    if (const Status status = decode(bad, &back); status.ok()) {
      if (back.place) {
        EXPECT_GT(back.place->process, 0);
        EXPECT_GE(back.place->descriptor, 0);
      }
    } else {
      EXPECT_EQ(status.code, HVD_INVALID);
    }
  }
}

TEST(LocalAddress, ThisProcessKnowsWhoItIs) {
  Identity one, other;
  const Status status = own_identity(&one);
  ASSERT_TRUE(status.ok()) << status.message;
  ASSERT_TRUE(own_identity(&other).ok());
  EXPECT_EQ(one, other);
  EXPECT_NE(one.processes, 0U);
  EXPECT_NE(one.boot, (std::array<uint8_t, 16>{}));
}

using Groups = std::vector<std::vector<int32_t>>;

struct Worker {
  std::string host;
  std::function<void(Address&)> change;
};

Hosts group(const std::vector<Worker>& workers, int32_t most = kMostLocal) {
  std::vector<backend::Member> members;
  std::vector<Address> addresses;
  for (const Worker& worker : workers) {
    members.push_back({1, worker.host, {}});
    Address address;
    address.place = place_of(static_cast<int>(members.size()));
    if (worker.change) worker.change(address);
    addresses.push_back(address);
  }
  return group_by_host(members, addresses, most);
}

TEST(LocalGroups, RanksOfAHostShareWhateverTheirOrder) {
  const Hosts hosts = group({{"a", {}}, {"b", {}}, {"a", {}}, {"b", {}}, {"c", {}}});
  EXPECT_EQ(hosts.groups, (Groups{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(hosts.group_of, (std::vector<int32_t>{0, 1, 0, 1, 2}));
}

TEST(LocalGroups, AnotherIdentityIsAnotherHost) {
  const auto boot = [](Address& a) { a.place->identity.boot[0] = 77; };
  const auto space = [](Address& a) { a.place->identity.processes = 5; };
  const auto user = [](Address& a) { a.place->identity.user = 5; };
  const auto layout = [](Address& a) { a.place->identity.layout = 99; };
  const auto size = [](Address& a) { a.place->identity.bytes = 5; };
  const auto none = [](Address& a) { a.place.reset(); };
  EXPECT_EQ(group({{"a", {}}, {"a", boot}, {"a", space}, {"a", user}, {"a", layout}, {"a", size}, {"a", {}}})
                .groups,
            (Groups{{0, 6}, {1}, {2}, {3}, {4}, {5}}));
  EXPECT_EQ(group({{"a", none}, {"a", none}, {"a", {}}}).groups, (Groups{{0}, {1}, {2}}));
}

TEST(LocalGroups, AHostOfMoreRanksThanFitIsSeveral) {
  EXPECT_EQ(group({{"a", {}}, {"a", {}}, {"b", {}}, {"a", {}}, {"a", {}}, {"a", {}}}, 2).groups,
            (Groups{{0, 1}, {2}, {3, 4}, {5}}));
}

}  // namespace
}  // namespace hvd::local
