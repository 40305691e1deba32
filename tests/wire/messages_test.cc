// Control messages: round trips, and bytes that are damaged.
#include "wire/messages.h"

#include <gtest/gtest.h>

#include <random>

#include "base/status.h"
#include "wire/member.h"

namespace hvd::wire {
namespace {

std::vector<std::unique_ptr<AddressT>> addresses(int n) {
  std::vector<std::unique_ptr<AddressT>> result;
  for (int i = 0; i < n; ++i) {
    result.push_back(std::make_unique<AddressT>());
    result.back()->backend = "gloo" + std::to_string(i);
    result.back()->blob.assign(17, static_cast<uint8_t>(i));
    result.back()->memories = 3;
  }
  return result;
}

AssignmentT assignment() {
  AssignmentT a;
  a.epoch = 7;
  a.root = 1;
  for (uint64_t w = 1; w <= 3; ++w) {
    a.members.push_back(std::make_unique<MemberT>());
    auto& m = *a.members.back();
    m.worker = w;
    m.host = "host-" + std::to_string(w);
    m.revision = 100 + w;
    m.digest = std::make_unique<wire::Digest>(w, ~w);
    m.addresses = addresses(2);
  }
  return a;
}

/// One message of every kind.
std::vector<EnvelopeT> one_of_each() {
  std::vector<EnvelopeT> all;
  const auto add = [&all](auto body) { all.push_back(envelope("job", 42, 7, std::move(body))); };
  HelloT hello;
  hello.protocol = kProtocol;
  hello.host = "a";
  hello.library = "0.1.0";
  add(std::move(hello));
  ReadyT ready;
  ready.cause = Cause::PeerLost;
  ready.digest = std::make_unique<wire::Digest>(1, 2);
  ready.addresses = addresses(3);
  ready.addresses[2]->lacking = "no such library";
  ready.addresses[2]->blob.clear();
  ready.settings.push_back(std::make_unique<SettingT>());
  ready.settings[0]->name = "option local";
  ready.settings[0]->value = "on";
  add(std::move(ready));
  add(HeartbeatT{});
  add(SyncedT{});
  FailureT failure;
  failure.message = "connection reset by rank 2";
  add(std::move(failure));
  add(DoneT{});
  add(LeaveT{});
  KvSetT set;
  set.key = "id";
  set.value.assign(100, 9);
  add(std::move(set));
  KvGetT get;
  get.key = "id";
  add(std::move(get));
  add(WelcomeT{});
  add(RefusedT{});
  add(assignment());
  add(AbortT{});
  HostsUpdatedT update;
  update.added = {"b", "c"};
  update.removed = {"d"};
  add(std::move(update));
  add(HeartbeatAckT{});
  KvValueT value;
  value.key = "id";
  value.value.assign(3, 1);
  add(std::move(value));
  JobEndedT ended;
  ended.reason = "all members are done";
  add(std::move(ended));
  StallT stall;
  stall.message = "rank 1 (host b) has not called 'loss'";
  stall.missing = {1, 5};
  stall.waited_ms = 60000;
  add(std::move(stall));
  AgentHelloT agent;
  agent.host = "node1";
  agent.workers = {3, 4};
  add(std::move(agent));
  add(AgentWelcomeT{});
  AgentStartT start;
  start.environment = {"HVD_WORKER=3"};
  start.base = {"PATH=/bin", "A="};
  start.argv = {"train", "--fast"};
  start.directory = "/work";
  add(std::move(start));
  add(AgentStopT{});
  add(AgentWatchT{});
  add(AgentEndT{});
  add(AgentFailedT{});
  add(AgentExitedT{});
  AgentOutputT output;
  output.bytes.assign(50, 'x');
  add(std::move(output));
  add(AgentGoneT{});
  add(AgentAckT{});
  AgentHeartbeatT heartbeat;
  heartbeat.running = {3};
  heartbeat.stopped = {4};
  add(std::move(heartbeat));
  add(AgentLeaveT{});
  add(AgentDrainT{});
  add(AgentDiedT{});
  add(OperatorHelloT{});
  CommandT command;
  command.verb = "status";
  command.argument = "json";
  add(std::move(command));
  CommandAnswerT told;
  told.text = "{}";
  add(std::move(told));
  RecoveredT recovered;
  recovered.total_ns = 5;
  add(std::move(recovered));
  ResumeT resume;
  resume.rank = 3;
  resume.ready = std::make_unique<ReadyT>();
  add(std::move(resume));
  LeavingT leaving;
  leaving.message = "its machine is taken away";
  add(std::move(leaving));
  ApplyT apply;
  apply.host = "pod-3";
  add(std::move(apply));
  AdmittedT admitted;
  admitted.worker = 9;
  admitted.key = "k";
  admitted.job = "job";
  admitted.host = "pod-3";
  add(std::move(admitted));
  WaitingT waiting;
  waiting.reason = "all 4 places are taken";
  add(std::move(waiting));
  ProbeT probe;
  probe.reason = "another worker says that it is host a, slot 0";
  add(std::move(probe));
  add(FeedWantedT{});
  add(FeedOfferT{});
  add(FeedT{});
  add(FedT{});
  add(FeedAskT{});
  add(FeedCommitT{});
  add(FeedTakeT{});
  add(FeedPieceT{});
  return all;
}

std::string refusal(std::span<const uint8_t> bytes) {
  try {
    decode(bytes);
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code, HVD_INVALID);
    return e.what();
  }
  return "accepted";
}

testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

TEST(Messages, EveryKindSurvivesTheWay) {
  const auto all = one_of_each();
  ASSERT_EQ(all.size(), static_cast<size_t>(Body::MAX));
  for (const auto& message : all) {
    const Bytes bytes = encode(message);
    const EnvelopeT back = decode(bytes);
    EXPECT_STREQ(body_name(back), body_name(message));
    EXPECT_EQ(back.job, "job");
    EXPECT_EQ(back.worker, 42u);
    EXPECT_EQ(back.generation, 7u);
    EXPECT_EQ(encode(back), bytes) << body_name(message);
  }
}

TEST(Messages, FieldsArrive) {
  const EnvelopeT back = decode(encode(envelope("j", 1, 2, assignment())));
  const AssignmentT* a = back.body.AsAssignment();
  ASSERT_NE(a, nullptr);
  ASSERT_EQ(a->members.size(), 3u);
  EXPECT_EQ(a->root, 1);
  EXPECT_EQ(a->members[2]->host, "host-3");
  EXPECT_EQ(to_digest(a->members[2]->digest.get()), (hvd::Digest{3, ~uint64_t{3}}));
  EXPECT_EQ(a->members[2]->addresses[1]->blob, std::vector<uint8_t>(17, 1));
}

TEST(Messages, BytesOfAnyAlignmentAreRead) {
  const Bytes bytes = encode(envelope("j", 1, 2, assignment()));
  for (size_t shift = 1; shift < 8; ++shift) {
    Bytes shifted(shift);
    shifted.insert(shifted.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(encode(decode(std::span(shifted).subspan(shift))), bytes);
  }
}

// FlatBuffers' verifier looks at the length of a vector alone, which is four bytes before its numbers.
TEST(Messages, NumbersOfEightBytesThatAreNotAlignedAreRefused) {
  alignas(8) const uint8_t heartbeat[] = {
      24,  0,   0,   0,   72,  86,  68,  67,  16,  0,   46,  0,   8,   0,   16,  0,   24,  0,   32,  0,   7,
      0,   12,  0,   16,  0,   0,   0,   0,   0,   0,   30,  72,  0,   0,   0,   44,  0,   0,   0,   5,   0,
      0,   0,   0,   0,   0,   0,   7,   0,   0,   0,   0,   132, 0,   0,   0,   0,   0,   0,   0,   0,   0,
      0,   0,   0,   0,   4,   0,   0,   10,  0,   132, 0,   64,  0,   0,   0,   4,   0,   10,  0,   0,   0,
      4,   0,   0,   0,   1,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   1,   0,   0,   0,   1,
      0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   255, 255, 34,
      255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
      255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1,   0,   0,   0,   0,   0,   0,   0,   0,
      0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0};
  EXPECT_TRUE(
      contains(refusal(heartbeat), "AgentHeartbeat with a vector of 64-bit numbers that is not aligned"));
}

TEST(Messages, MessageWithoutBodyIsNotSent) { EXPECT_THROW(encode(EnvelopeT{}), Error); }

TEST(Messages, ForeignBytesAreRefused) {
  EXPECT_TRUE(contains(refusal({}), "too few"));
  const std::string text = "GET / HTTP/1.1\r\nHost: driver\r\n\r\n";
  EXPECT_TRUE(contains(refusal({reinterpret_cast<const uint8_t*>(text.data()), text.size()}), "\"HVDC\""));
  Bytes bytes = encode(envelope("j", 1, 2, DoneT{}));
  bytes[4] = 'X';
  EXPECT_TRUE(contains(refusal(bytes), "\"HVDC\""));
}

TEST(Messages, EveryTruncationIsRefused) {
  // Bytes behind the last thing referred to may be missing without harm, never more than padding.
  const Bytes bytes = encode(envelope("job", 1, 2, assignment()));
  for (size_t n = 0; n + 8 < bytes.size(); ++n)
    ASSERT_NE(refusal(std::span(bytes).first(n)), "accepted") << n << " of " << bytes.size() << " bytes";
}

// Built by hand, since the generated code does not write what the schema forbids.
Bytes handmade(uint8_t body_type, bool with_job, bool with_body) {
  flatbuffers::FlatBufferBuilder b;
  const auto job = b.CreateString("job");
  const auto body = CreateDone(b, 1);
  const auto start = b.StartTable();
  if (with_job) b.AddOffset(Envelope::VT_JOB, job);
  if (with_body) {
    b.AddElement<uint8_t>(Envelope::VT_BODY_TYPE, body_type, 0);
    b.AddOffset(Envelope::VT_BODY, body.Union());
  }
  b.Finish(flatbuffers::Offset<Envelope>(b.EndTable(start)), EnvelopeIdentifier());
  return Bytes(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
}

TEST(Messages, RequiredFieldsAndKnownBodiesAreDemanded) {
  const auto done = static_cast<uint8_t>(Body::Done);
  EXPECT_EQ(refusal(handmade(done, true, true)), "accepted");
  EXPECT_TRUE(contains(refusal(handmade(done, false, true)), "required"));
  EXPECT_TRUE(contains(refusal(handmade(done, true, false)), "required"));
  EXPECT_TRUE(contains(refusal(handmade(0, true, true)), "unknown type 0"));
  EXPECT_TRUE(contains(refusal(handmade(200, true, true)), "unknown type 200"));
}

TEST(Messages, ReferencesThatMultiplyAreRefused) {
  flatbuffers::FlatBufferBuilder b;
  const auto host = b.CreateString(std::string(10000, 'h'));
  const auto member = CreateMember(b, 1, host);
  const std::vector<flatbuffers::Offset<Member>> members(5000, member);  // 50 MB out of 30 KB
  const auto body = CreateAssignment(b, 1, 0, b.CreateVector(members));
  FinishEnvelopeBuffer(b, CreateEnvelope(b, b.CreateString("j"), 1, 1, 1, Body::Assignment, body.Union()));
  EXPECT_TRUE(contains(refusal({b.GetBufferPointer(), b.GetSize()}), "unpacks to more"));
}

TEST(Messages, TextsOfAnOrderThatMultiplyAreRefused) {
  for (int field = 0; field < 3; ++field) {
    flatbuffers::FlatBufferBuilder b;
    const auto text = b.CreateString(std::string(10000, 'e'));
    const auto vector = b.CreateVector(std::vector<flatbuffers::Offset<flatbuffers::String>>(5000, text));
    AgentStartBuilder start(b);
    if (field == 0) start.add_environment(vector);
    if (field == 1) start.add_base(vector);
    if (field == 2) start.add_argv(vector);
    const auto body = start.Finish();
    const auto job = b.CreateString("j");
    FinishEnvelopeBuffer(b, CreateEnvelope(b, job, 1, 1, 1, Body::AgentStart, body.Union()));
    EXPECT_TRUE(contains(refusal({b.GetBufferPointer(), b.GetSize()}), "unpacks to more"));
  }
}

TEST(Messages, AHundredThousandMutationsHarmNobody) {
  std::vector<Bytes> samples;
  for (const auto& message : one_of_each()) samples.push_back(encode(message));
  std::mt19937_64 random(20261121);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  int accepted = 0;
  for (int i = 0; i < 100000; ++i) {
    Bytes bytes = samples[below(samples.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      switch (below(5)) {
        case 0: bytes[below(bytes.size())] ^= static_cast<uint8_t>(1u << below(8)); break;
        case 1: bytes[below(bytes.size())] = static_cast<uint8_t>(random()); break;
        case 2: bytes[below(bytes.size())] = below(2) != 0 ? 0xff : 0; break;
        case 3: bytes.resize(1 + below(bytes.size())); break;
        default: {
          const Bytes& other = samples[below(samples.size())];
          const size_t n = 1 + below(std::min(other.size(), bytes.size()));
          std::copy_n(other.begin(), n, bytes.end() - static_cast<std::ptrdiff_t>(n));
        }
      }
    }
    // In memory of exactly that size, so that the address sanitizer sees one byte too far.
    const Bytes exact(bytes.begin(), bytes.end());
    try {
      encode(decode(exact));
      ++accepted;
    } catch (const Error& e) { ASSERT_EQ(e.status().code, HVD_INVALID) << e.what(); }
  }
  EXPECT_GT(accepted, 1000);  // else nothing was read beyond the first check
  EXPECT_LT(accepted, 99000);
}

std::string objection(const std::vector<Offer>& offers) {
  Addresses addresses;
  for (const Offer& offer : offers) {
    addresses.push_back(std::make_unique<AddressT>());
    addresses.back()->backend = offer.backend;
    addresses.back()->lacking = offer.lacking;
    addresses.back()->blob = offer.address;
  }
  try {
    read_offers(addresses);
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code, HVD_INVALID);
    EXPECT_THROW(write_offers(offers), Error) << e.what();
    return e.what();
  }
  return "accepted";
}

TEST(Offers, ComeBackAsTheyWere) {
  const hvd::Member member{7,
                           "h",
                           {{"gloo", "", 1, 2, 3, std::vector<uint8_t>(4096, 9)},
                            {"nccl", "", 2, ~uint64_t{0}, 5, {}},
                            {"mpi", "not here", 0, 0, 0, {}}},
                           1,
                           true,
                           12,
                           {3, 4}};
  const hvd::Member back = read_member(*write_member(member));
  EXPECT_EQ(back.offers, member.offers);
  EXPECT_TRUE(back.worker == 7 && back.host == "h" && back.local_rank == 1 && back.has_state);
  EXPECT_TRUE(back.revision == 12 && back.digest == member.digest);
  EXPECT_NE(find_offer(back, "nccl"), nullptr);
  EXPECT_EQ(find_offer(back, "mpi"), nullptr) << "it is lacking";
}

TEST(Offers, HaveBounds) {
  const Offer gloo{"gloo", "", 1, 1, 1, {1}};
  EXPECT_EQ(objection({}), "accepted");
  EXPECT_EQ(objection({gloo}), "accepted");
  EXPECT_TRUE(contains(objection(std::vector<Offer>(kMostOffers + 1, gloo)), "17 backends"));
  EXPECT_TRUE(contains(objection({gloo, gloo}), "gloo twice"));
  EXPECT_TRUE(contains(objection({{"", "", 1, 1, 1, {}}}), "1 to 32 bytes"));
  EXPECT_TRUE(contains(objection({{std::string(kLongestName + 1, 'x'), "", 1, 1, 1, {}}}), "1 to 32 bytes"));
  EXPECT_TRUE(contains(objection({{"a\nb", "", 1, 1, 1, {}}}), "a b"));
  EXPECT_TRUE(contains(objection({{"gloo", "not here", 1, 1, 1, {}}}), "no backend for host memory"));
  EXPECT_TRUE(contains(objection({gloo, {"nccl", "not here", 1, 1, 1, {1}}}), "nccl"));
  EXPECT_TRUE(contains(objection({gloo, {"big", "", 1, 1, 1, std::vector<uint8_t>(kMostAddress)}}), "big"));
  // A reason may be long: it is cut.
  const auto cut = read_offers(write_offers({gloo, {"b", std::string(5000, 'r'), 0, 0, 0, {}}}));
  EXPECT_EQ(cut[1].lacking, std::string(kLongestReason, 'r'));
  EXPECT_THROW(read_settings(write_settings(std::vector<hvd::Setting>(kMostSettings + 1, {"a", "b"}))),
               Error);
  EXPECT_THROW(read_settings(write_settings({{"a", std::string(kLongestSetting + 1, 'x')}})), Error);
  EXPECT_THROW(read_settings(write_settings({{"a", "x"}, {"b", "x"}, {"a", "y"}})), Error);
}

}  // namespace
}  // namespace hvd::wire
