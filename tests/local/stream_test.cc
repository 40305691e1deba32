// One ring between a sender and a receiver: any sizes, any moments, and a sender or receiver gone mad.
#include "local/stream.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>

namespace hvd::local {
namespace {

using Result = StreamReader::Result;

struct Pair {
  std::unique_ptr<Ring> ring = std::make_unique<Ring>();
  StreamWriter writer{*ring};
  StreamReader reader{*ring};
};

std::vector<uint8_t> make_message(std::mt19937& random, size_t size) {
  std::vector<uint8_t> message(size);
  const auto first = static_cast<uint8_t>(random());
  for (size_t i = 0; i < size; ++i) message[i] = static_cast<uint8_t>(first + i * 7);
  return message;
}

size_t any_size(std::mt19937& random) {
  switch (random() % 40) {
    case 0: return 0;
    case 1: return random() % kMostMessage + 1;
    case 2: return kRingBytes - 16 + random() % 32;
    case 3: return kMostMessage;
    default: return random() % 300;
  }
}

TEST(LocalStream, CarriesEverySizeInOrderWhateverTheTurns) {
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    Pair pair;
    std::deque<std::vector<uint8_t>> under_way;
    int sent = 0, received = 0;
    while (received < 300) {
      if (sent < 300 && random() % 3 != 0) {
        under_way.push_back(make_message(random, any_size(random)));
        ASSERT_TRUE(pair.writer.write(under_way.back()));
        ++sent;
      }
      if (pair.writer.keeps() && random() % 2 == 0) { ASSERT_TRUE(pair.writer.flush()); }
      if (random() % 2 == 0 || sent == 300) {
        const Result result = pair.reader.next();
        ASSERT_NE(result, Result::kBroken) << pair.reader.reason();
        if (result != Result::kMessage) continue;
        ASSERT_FALSE(under_way.empty());
        const auto got = pair.reader.message();
        ASSERT_EQ(got.size(), under_way.front().size()) << "seed " << seed << " message " << received;
        ASSERT_TRUE(std::equal(got.begin(), got.end(), under_way.front().begin()));
        under_way.pop_front();
        ++received;
      }
    }
    EXPECT_TRUE(pair.reader.empty());
    EXPECT_FALSE(pair.writer.keeps());
  }
}

TEST(LocalStream, ASenderWithoutRoomAsksForItOnce) {
  Pair pair;
  const std::vector<uint8_t> message(kRingBytes, 3);
  ASSERT_TRUE(pair.writer.write(message));
  EXPECT_TRUE(pair.writer.keeps());
  EXPECT_TRUE(pair.reader.wanted());
  EXPECT_FALSE(pair.reader.wanted());
  EXPECT_EQ(pair.reader.next(), Result::kNothing);  // the first part
  ASSERT_TRUE(pair.writer.flush());
  EXPECT_FALSE(pair.writer.keeps());
  EXPECT_EQ(pair.reader.next(), Result::kMessage);
  EXPECT_EQ(pair.reader.message().size(), message.size());
  EXPECT_FALSE(pair.reader.wanted());
}

TEST(LocalStream, TwoThreads) {
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Pair pair;
    constexpr int kMessages = 3000;
    std::thread sender([&] {
      std::mt19937 random(seed);
      for (int i = 0; i < kMessages; ++i)
        ASSERT_TRUE(pair.writer.write(make_message(random, random() % 2000)));
      while (pair.writer.keeps()) {
        ASSERT_TRUE(pair.writer.flush());
        std::this_thread::yield();
      }
    });
    std::mt19937 random(seed);
    for (int i = 0; i < kMessages;) {
      const Result result = pair.reader.next();
      ASSERT_NE(result, Result::kBroken) << pair.reader.reason();
      if (result != Result::kMessage) {
        std::this_thread::yield();
        continue;
      }
      const std::vector<uint8_t> expected = make_message(random, random() % 2000);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), pair.reader.message().begin(),
                             pair.reader.message().end()))
          << "message " << i;
      ++i;
    }
    sender.join();
  }
}

void expect_broken(Pair& pair) {
  EXPECT_EQ(pair.reader.next(), Result::kBroken);
  EXPECT_FALSE(pair.reader.reason().empty());
  EXPECT_TRUE(pair.reader.empty()) << "nothing is looked for in it any more";
  EXPECT_EQ(pair.reader.next(), Result::kBroken);
}

TEST(LocalStream, ASenderGoneMadIsFound) {
  {
    Pair pair;
    pair.ring->written.value = kRingBytes + 8;
    expect_broken(pair);
  }
  {
    Pair pair;
    pair.ring->written.value = 12;
    expect_broken(pair);
  }
  {
    Pair pair;
    pair.ring->written.value = ~uint64_t{0};
    expect_broken(pair);
  }
  for (const uint32_t size : {static_cast<uint32_t>(kMostMessage + 1), 0xffffffffU}) {
    Pair pair;
    ASSERT_TRUE(pair.writer.write(std::vector<uint8_t>(100)));
    std::memcpy(pair.ring->data, &size, sizeof(size));
    expect_broken(pair);
  }
  {
    Pair pair;
    ASSERT_TRUE(pair.writer.write(std::vector<uint8_t>(100)));
    pair.ring->data[4] = 1;  // its number
    expect_broken(pair);
  }
  {
    Pair pair;
    ASSERT_TRUE(pair.writer.write(std::vector<uint8_t>(100)));
    EXPECT_EQ(pair.reader.next(), Result::kMessage);
    pair.ring->written.value = 8;  // back in time
    expect_broken(pair);
  }
}

TEST(LocalStream, AReceiverGoneMadIsFound) {
  for (const uint64_t read : {uint64_t{8}, ~uint64_t{0} - 7, uint64_t{1} << 40, uint64_t{3}}) {
    Pair pair;
    pair.ring->read.value = read;
    EXPECT_FALSE(pair.writer.write(std::vector<uint8_t>(100))) << read;
  }
}

// Random bytes all over the ring, with positions that could be: answers, not crashes (sanitizers look on).
TEST(LocalStream, RandomRingsAreAnswered) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    Pair pair;
    for (size_t i = 0; i < 64; ++i)
      pair.ring->data[i] = static_cast<uint8_t>(random() % 3 == 0 ? random() : 0);
    pair.ring->written.value = random() % (kRingBytes / 8) * 8;
    for (int i = 0; i < 10; ++i) static_cast<void>(pair.reader.next());
  }
}

}  // namespace
}  // namespace hvd::local
