// Heartbeats that are read where they lie, and answers that are addressed anew.
#include "wire/heartbeat.h"

#include <gtest/gtest.h>

#include "wire/messages.h"

namespace hvd::wire {
namespace {

EnvelopeT heartbeat() {
  HeartbeatT beat;
  beat.revision = 3;
  beat.sent_ns = 99;
  beat.progress = std::make_unique<ProgressT>();
  beat.progress->commits = 5;
  beat.progress->useful_ns = 6;
  beat.progress->commit_ns = 7;
  beat.progress->sync_bytes = 8;
  EnvelopeT message = envelope("job", 42, 7, std::move(beat));
  message.sequence = 11;
  message.term = 2;
  return message;
}

TEST(Heartbeat, IsReadAsItWasWritten) {
  const Bytes bytes = encode(heartbeat());
  const Envelope* read = heartbeat_in(bytes);
  ASSERT_NE(read, nullptr);
  EXPECT_EQ(read->job()->string_view(), "job");
  EXPECT_EQ(read->worker(), 42u);
  EXPECT_EQ(read->sequence(), 11u);
  EXPECT_EQ(read->term(), 2u);
  const Heartbeat* beat = read->body_as_Heartbeat();
  ASSERT_NE(beat, nullptr);
  EXPECT_EQ(beat->revision(), 3u);
  EXPECT_EQ(beat->sent_ns(), 99);
  EXPECT_EQ(beat->progress()->commits(), 5u);
  EXPECT_EQ(beat->progress()->sync_bytes(), 8u);
}

TEST(Heartbeat, EverythingElseIsLeftToTheDecoder) {
  EXPECT_EQ(heartbeat_in(encode(envelope("job", 42, 7, DoneT{}))), nullptr);
  const Bytes bytes = encode(heartbeat());
  Bytes shifted(1);
  shifted.insert(shifted.end(), bytes.begin(), bytes.end());
  EXPECT_EQ(heartbeat_in(std::span(shifted).subspan(1)), nullptr) << "not aligned";
  Bytes foreign = bytes;
  foreign[4] = 'X';
  EXPECT_EQ(heartbeat_in(foreign), nullptr);
  EXPECT_EQ(heartbeat_in({}), nullptr);
  for (size_t n = 0; n + 8 < bytes.size(); ++n) {
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    ASSERT_EQ(heartbeat_in(cut), nullptr) << n << " of " << bytes.size() << " bytes";
  }
}

TEST(HeartbeatAnswer, IsWhatWouldBeEncodedForEach) {
  HeartbeatAnswer answer("job", 2, std::chrono::milliseconds(1500));
  for (const uint64_t worker : {1, 70'000}) {
    HeartbeatAckT ack;
    ack.sent_ns = static_cast<int64_t>(worker) + 5;
    ack.interval_ms = 1500;
    EnvelopeT message = envelope("job", worker, 0, std::move(ack));
    message.sequence = worker + 1;
    message.term = 2;
    const std::span<const uint8_t> bytes = answer.to(worker, worker + 1, static_cast<int64_t>(worker) + 5);
    EXPECT_EQ(Bytes(bytes.begin(), bytes.end()), encode(message));
  }
  EXPECT_EQ(decode(answer.to(1, 2, 0)).body.AsHeartbeatAck()->sent_ns, 0);
}

}  // namespace
}  // namespace hvd::wire
