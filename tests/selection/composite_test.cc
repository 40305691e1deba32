// Several backends as one: who gets which operation, what is agreed on between the ranks, and that what
// happens to one of them happens to all. The backends are doubles (backend_double.h).
#include "selection/composite.h"

#include "selection/backend_double.h"
#include "selection/relay.h"

namespace hvd::selection::test {
namespace {

using Lines = std::vector<std::string>;

/// A worker with a double for host memory, one for device memory unless it lacks it, and any more.
struct Rank {
  explicit Rank(const std::vector<std::pair<std::string, uint64_t>>& backends = {{"host", kHost},
                                                                                 {"device", kDevice}},
                std::vector<Absent> absent = {}) {
    std::vector<Selected> selected;
    for (const auto& [name, memories] : backends) {
      auto instance = std::make_unique<BackendDouble>(name, memories, diary);
      doubles[name] = instance.get();
      selected.push_back({std::move(instance), "the test wants " + name, name != "host"});
    }
    instance = make_composite(std::move(selected), std::move(absent), std::make_shared<Logger>());
  }
  std::shared_ptr<Diary> diary = std::make_shared<Diary>();
  std::map<std::string, BackendDouble*> doubles;
  std::unique_ptr<backend::Instance> instance;
};

std::vector<backend::Member> members_of(std::initializer_list<Rank*> ranks) {
  std::vector<backend::Member> members;
  for (Rank* rank : ranks) {
    backend::Member member{members.size() + 1, "h" + std::to_string(members.size()), {}};
    const Status status = rank->instance->offers(&member.offers);
    EXPECT_TRUE(status.ok()) << status.message;
    members.push_back(std::move(member));
  }
  return members;
}

hvd_backend_op op_on(Pending& pending, hvd_memory memory, uint64_t sequence,
                     hvd_dtype dtype = HVD_DTYPE_FLOAT32,
                     hvd_collective collective = HVD_COLLECTIVE_ALLREDUCE) {
  hvd_backend_op op = pending.op(collective, sequence);
  op.memory = memory;
  op.dtype = dtype;
  return op;
}

std::string reason_of(const backend::Instance& instance, hvd_memory memory,
                      hvd_dtype dtype = HVD_DTYPE_FLOAT32,
                      hvd_collective collective = HVD_COLLECTIVE_ALLREDUCE) {
  backend::Choice choice;
  const Status status = instance.choice(memory, dtype, collective, &choice);
  EXPECT_EQ(status.ok(), instance.supports(memory, dtype, collective));
  return status.ok() ? choice.name + ": " + choice.reason
                     : std::string(status_name(status.code)) + ": " + status.message;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Composite, OperationsGoWhereTheirMemoryIsAndMessagesToTheHosts) {
  Rank rank;
  EXPECT_EQ(rank.instance->description().name, "host");
  EXPECT_EQ(rank.instance->description().memories, kHost | kDevice);
  ASSERT_TRUE(rank.instance->connect(1, 0, members_of({&rank}), kSoon).ok());
  rank.diary->take();
  Pending a, b;
  EXPECT_TRUE(run(*rank.instance, op_on(a, HVD_MEMORY_HOST, 1), a).ok());
  EXPECT_TRUE(run(*rank.instance, op_on(b, HVD_MEMORY_CUDA, 2), b).ok());
  EXPECT_TRUE(rank.instance->send_message(3, std::vector<uint8_t>(5)).ok());
  std::atomic<bool> done{true};
  rank.instance->carrier().progress(done, now());
  EXPECT_EQ(rank.diary->take(),
            (Lines{"host op 1", "device op 2", "host message to 3 of 5", "host progress"}));
  EXPECT_EQ(reason_of(*rank.instance, HVD_MEMORY_CUDA), "device: the test wants device");
  EXPECT_EQ(reason_of(*rank.instance, HVD_MEMORY_HOST), "host: the test wants host");
  EXPECT_EQ(rank.instance->detail(), "a double; device: a double");

  void* memory = nullptr;
  void* ticket = nullptr;
  const hvd_backend_copy copies[2] = {};
  EXPECT_TRUE(rank.instance->host_alloc(HVD_MEMORY_CUDA, 7, &memory).ok());
  EXPECT_TRUE(rank.instance->copy(HVD_MEMORY_CUDA, 4, nullptr, true, copies, &ticket).ok());
  EXPECT_TRUE(rank.instance->copy_wait(HVD_MEMORY_CUDA, ticket, kSoon).ok());
  rank.instance->host_free(HVD_MEMORY_CUDA, memory);
  EXPECT_EQ(rank.diary->take(),
            (Lines{"device alloc 7", "device copies to 4: 2", "device copied", "device free"}));
  rank.instance->disconnect();
  EXPECT_EQ(rank.diary->take(), (Lines{"device disconnect", "host disconnect"}));
}

TEST(Composite, TheFirstThatServesDtypeAndCollectiveIsTaken) {
  Rank rank({{"host", kHost}, {"more", kHost}});
  rank.doubles["host"]->description_.dtypes = dtype_bit(HVD_DTYPE_FLOAT32);
  rank.doubles["host"]->description_.collectives = uint64_t{1} << HVD_COLLECTIVE_ALLREDUCE;
  ASSERT_TRUE(rank.instance->connect(1, 0, members_of({&rank}), kSoon).ok());
  rank.diary->take();
  Pending a, b, c;
  EXPECT_TRUE(run(*rank.instance, op_on(a, HVD_MEMORY_HOST, 1), a).ok());
  EXPECT_TRUE(run(*rank.instance, op_on(b, HVD_MEMORY_HOST, 2, HVD_DTYPE_BFLOAT16), b).ok());
  EXPECT_TRUE(
      run(*rank.instance, op_on(c, HVD_MEMORY_HOST, 3, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLGATHER), c).ok());
  EXPECT_EQ(rank.diary->take(), (Lines{"host op 1", "more op 2", "more op 3"}));
  EXPECT_TRUE(
      has(reason_of(*rank.instance, HVD_MEMORY_CUDA), "HVD_UNSUPPORTED: backend host does not take CUDA"));
  void* memory = nullptr;
  EXPECT_EQ(rank.instance->host_alloc(HVD_MEMORY_CUDA, 1, &memory).code, HVD_UNSUPPORTED);
}

TEST(Composite, WhatNobodyKnowsIsServedByNobody) {
  Rank rank;
  ASSERT_TRUE(rank.instance->connect(1, 0, members_of({&rank}), kSoon).ok());
  for (const auto& [memory, dtype, collective] :
       std::vector<std::tuple<hvd_memory, hvd_dtype, hvd_collective>>{
           {-1, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE},
           {77, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE},
           {0, 0, HVD_COLLECTIVE_ALLREDUCE},
           {0, -5, HVD_COLLECTIVE_ALLREDUCE},
           {0, 1000, HVD_COLLECTIVE_ALLREDUCE},
           {0, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_JOIN},
           {0, HVD_DTYPE_FLOAT32, -1},
           {0, HVD_DTYPE_FLOAT32, INT32_MAX}}) {
    EXPECT_FALSE(rank.instance->supports(memory, dtype, collective)) << memory << dtype << collective;
    Pending pending;
    const Status status = rank.instance->submit(op_on(pending, memory, 1, dtype, collective));
    EXPECT_EQ(status.code, HVD_UNSUPPORTED) << status.message;
  }
  EXPECT_TRUE(rank.instance->supports(HVD_MEMORY_HOST, 0, HVD_COLLECTIVE_BARRIER));
}

TEST(Composite, ABackendThatAMemberLacksIsNotUsed) {
  Rank a, b({{"host", kHost}}, {{"device", "no such library"}});
  std::vector<backend::Member> members = members_of({&a, &b});
  EXPECT_TRUE(a.instance->supports(HVD_MEMORY_CUDA, HVD_DTYPE_FLOAT32,
                                   HVD_COLLECTIVE_ALLREDUCE));  // as far as it knows
  ASSERT_TRUE(a.instance->connect(1, 0, members, kSoon).ok());
  ASSERT_TRUE(b.instance->connect(1, 1, members, kSoon).ok());
  EXPECT_EQ(a.diary->take(), Lines{"host connect 1"});
  EXPECT_EQ(
      reason_of(*a.instance, HVD_MEMORY_CUDA),
      "HVD_UNSUPPORTED: backend host does not take CUDA memory; backend device is lacking on rank 1 (host h1): "
      "no such library");
  EXPECT_EQ(reason_of(*b.instance, HVD_MEMORY_CUDA),
            "HVD_UNSUPPORTED: backend host does not take CUDA memory; no device: no such library");
  Pending pending;
  EXPECT_EQ(a.instance->submit(op_on(pending, HVD_MEMORY_CUDA, 1)).code, HVD_UNSUPPORTED);
  EXPECT_EQ(a.instance->detail(), "a double");

  // Gone from the job, it is no obstacle any more.
  a.instance->disconnect();
  a.diary->take();
  ASSERT_TRUE(a.instance->connect(2, 0, members_of({&a}), kSoon).ok());
  EXPECT_EQ(a.diary->take(), (Lines{"host connect 2", "device connect 2"}));
  EXPECT_TRUE(run(*a.instance, op_on(pending, HVD_MEMORY_CUDA, 1), pending).ok());
}

TEST(Composite, WhoDoesNotEvenLookForItIsNamed) {
  Rank a, b({{"host", kHost}});
  ASSERT_TRUE(a.instance->connect(1, 0, members_of({&a, &b}), kSoon).ok());
  EXPECT_TRUE(has(reason_of(*a.instance, HVD_MEMORY_CUDA), "device is not used by rank 1 (host h1)"))
      << reason_of(*a.instance, HVD_MEMORY_CUDA);
}

TEST(Composite, AnOptionalBackendWithoutAnAddressIsLeftOut) {
  Rank rank;
  rank.doubles["device"]->no_address = Status(HVD_UNAVAILABLE, "the driver is too old");
  ASSERT_TRUE(rank.instance->connect(1, 0, members_of({&rank}), kSoon).ok());
  EXPECT_TRUE(has(reason_of(*rank.instance, HVD_MEMORY_CUDA), "rank 0 (host h0): the driver is too old"));
  rank.doubles["host"]->no_address = Status(HVD_UNAVAILABLE, "no network");
  std::vector<Offer> offers;
  EXPECT_EQ(rank.instance->offers(&offers).message, "no network");
}

TEST(Composite, OnlyWhatAllMembersCanDoIsSupported) {
  Rank a, b;
  a.doubles["device"]->description_.dtypes = dtype_bit(HVD_DTYPE_FLOAT32) | dtype_bit(HVD_DTYPE_FLOAT16);
  b.doubles["device"]->description_.dtypes = dtype_bit(HVD_DTYPE_FLOAT32) | dtype_bit(HVD_DTYPE_BFLOAT16);
  const std::vector<backend::Member> members = members_of({&a, &b});
  ASSERT_TRUE(a.instance->connect(1, 0, members, kSoon).ok());
  ASSERT_TRUE(b.instance->connect(1, 1, members, kSoon).ok());
  for (const Rank* rank : {&a, &b}) {
    EXPECT_TRUE(rank->instance->supports(HVD_MEMORY_CUDA, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE));
    for (const hvd_dtype dtype : {HVD_DTYPE_FLOAT16, HVD_DTYPE_BFLOAT16}) {
      EXPECT_FALSE(rank->instance->supports(HVD_MEMORY_CUDA, dtype, HVD_COLLECTIVE_ALLREDUCE)) << dtype;
      EXPECT_TRUE(rank->instance->supports(HVD_MEMORY_HOST, dtype, HVD_COLLECTIVE_ALLREDUCE)) << dtype;
    }
  }
  EXPECT_TRUE(
      has(reason_of(*a.instance, HVD_MEMORY_CUDA, HVD_DTYPE_FLOAT16), "device does not do it on every rank"));
}

// Each waits in connect for all: two ranks in two orders would wait for each other.
TEST(Composite, AllConnectInTheOrderOfRankZero) {
  Rank a({{"host", kHost}, {"x", kDevice}, {"y", kDevice}});
  Rank b({{"host", kHost}, {"y", kDevice}, {"x", kDevice}});
  const std::vector<backend::Member> members = members_of({&a, &b});
  ASSERT_TRUE(a.instance->connect(1, 0, members, kSoon).ok());
  ASSERT_TRUE(b.instance->connect(1, 1, members, kSoon).ok());
  EXPECT_EQ(a.diary->take(), (Lines{"host connect 1", "x connect 1", "y connect 1"}));
  EXPECT_EQ(b.diary->take(), (Lines{"host connect 1", "x connect 1", "y connect 1"}));
  Pending pending;
  EXPECT_TRUE(run(*b.instance, op_on(pending, HVD_MEMORY_CUDA, 1), pending).ok());
  EXPECT_EQ(b.diary->take(), Lines{"x op 1"});  // and prefer what rank 0 prefers
}

TEST(Composite, OtherBackendsForHostMemoryAreNamed) {
  Rank a, b({{"other", kHost}, {"device", kDevice}});
  const std::vector<backend::Member> members = members_of({&a, &b});
  for (const Status& status :
       {a.instance->connect(1, 0, members, kSoon), b.instance->connect(1, 1, members, kSoon)}) {
    EXPECT_EQ(status.code, HVD_UNAVAILABLE);
    EXPECT_TRUE(has(status.message, "other") && has(status.message, "host h1") &&
                has(status.message, "has backend"))
        << status.message;
  }
  EXPECT_EQ(a.diary->take(), Lines{});
}

TEST(Composite, AMemberWithoutAnyBackendIsNamed) {
  Rank a, b;
  std::vector<Member> members = members_of({&a, &b});
  members[1].offers.clear();
  const Status status = a.instance->connect(1, 0, members, kSoon);
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_EQ(status.rank, 1);
  EXPECT_TRUE(has(status.message, "rank 1 (host h1) has backend none")) << status.message;
}

TEST(Composite, OffersAreARowABackend) {
  Rank rank({{"host", kHost}, {"device", kDevice}}, {{"other", "no such library"}});
  std::vector<Offer> offers;
  ASSERT_TRUE(rank.instance->offers(&offers).ok());
  ASSERT_EQ(offers.size(), 3U);
  EXPECT_EQ(offers[0].backend, "host");
  EXPECT_EQ(offers[1].memories, kDevice);
  EXPECT_EQ(std::string(offers[1].address.begin(), offers[1].address.end()), "device's address");
  EXPECT_EQ(offers[2].lacking, "no such library");
}

TEST(Composite, AFailureToConnectTakesAllBack) {
  Rank rank;
  rank.doubles["device"]->connect_gives = Status(HVD_UNAVAILABLE, "two ranks on one device");
  const Status status = rank.instance->connect(4, 0, members_of({&rank}), kSoon);
  EXPECT_EQ(status.code, HVD_UNAVAILABLE);
  EXPECT_EQ(status.backend, "device");
  EXPECT_TRUE(has(status.message, "two ranks on one device (option backend=host does without device)"))
      << status.message;
  EXPECT_EQ(rank.diary->take(),
            (Lines{"host connect 4", "device connect 4", "host abort 4", "device abort 4"}));
  rank.doubles["device"]->connect_gives = Status();
  EXPECT_TRUE(rank.instance->connect(5, 0, members_of({&rank}), kSoon).ok());
}

TEST(Composite, AllHaveOneDeadline) {
  Rank rank;
  rank.doubles["host"]->connect_waits = true;
  const Duration whole = std::chrono::milliseconds(20);
  EXPECT_EQ(rank.instance->connect(1, 0, members_of({&rank}), whole).code, HVD_TIMEOUT);
  rank.doubles["host"]->connect_waits = false;
  ASSERT_TRUE(rank.instance->connect(2, 0, members_of({&rank}), kSoon).ok());
  EXPECT_LE(rank.doubles["device"]->last_timeout, rank.doubles["host"]->last_timeout);
  EXPECT_LE(rank.doubles["host"]->last_timeout, kSoon);
}

TEST(Composite, AbortOfOneIsTheAbortOfAll) {
  Rank rank;
  ASSERT_TRUE(rank.instance->connect(3, 0, members_of({&rank}), kSoon).ok());
  rank.doubles["host"]->holds = rank.doubles["device"]->holds = true;
  Pending a, b, c;
  ASSERT_TRUE(rank.instance->submit(op_on(a, HVD_MEMORY_HOST, 1)).ok());
  ASSERT_TRUE(rank.instance->submit(op_on(b, HVD_MEMORY_CUDA, 2)).ok());
  rank.diary->take();
  rank.instance->abort(2);  // another generation
  EXPECT_EQ(rank.diary->take(), Lines{});
  rank.instance->abort(3);
  rank.instance->abort(3);
  EXPECT_EQ(rank.diary->take(), (Lines{"host abort 3", "device abort 3"}));
  EXPECT_EQ(a.wait().code, HVD_PEER_LOST);
  EXPECT_EQ(b.wait().code, HVD_PEER_LOST);
  EXPECT_EQ(rank.instance->submit(op_on(c, HVD_MEMORY_CUDA, 3)).code, HVD_PEER_LOST);
  rank.doubles["device"]->holds = false;
  ASSERT_TRUE(rank.instance->connect(4, 0, members_of({&rank}), kSoon).ok());
  EXPECT_TRUE(run(*rank.instance, op_on(c, HVD_MEMORY_CUDA, 4), c).ok());
}

// A thread of one backend's, whose failure the program answers with abort.
TEST(Composite, ClosingWaitsForAnAbortThatIsUnderWay) {
  Rank rank;
  ASSERT_TRUE(rank.instance->connect(1, 0, members_of({&rank}), kSoon).ok());
  rank.doubles["host"]->holds = true;
  struct Gate {
    std::promise<void> reached, open;
  } gate;
  Pending pending;
  hvd_backend_op op = op_on(pending, HVD_MEMORY_HOST, 1);
  op.done_context = &gate;
  op.done = [](void* context, hvd_status, const hvd_error*) {
    static_cast<Gate*>(context)->reached.set_value();
    static_cast<Gate*>(context)->open.get_future().wait();
  };
  ASSERT_TRUE(rank.instance->submit(op).ok());
  backend::Instance* const instance = rank.instance.get();
  std::thread aborting([instance] { instance->abort(1); });
  ASSERT_EQ(gate.reached.get_future().wait_for(kSoon), std::future_status::ready);
  auto closed = std::async(std::launch::async, [&] { rank.instance.reset(); });
  EXPECT_EQ(closed.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout)
      << "nobody waited for the abort";
  gate.open.set_value();
  EXPECT_EQ(closed.wait_for(kSoon), std::future_status::ready);
  aborting.join();
  EXPECT_TRUE(rank.diary->comes("device abort 1"));
}

TEST(Composite, AbortEndsAConnectThatWaits) {
  Rank rank;
  rank.doubles["device"]->connect_waits = true;
  const std::vector<backend::Member> members = members_of({&rank});
  Status status;
  std::thread connecting([&] { status = rank.instance->connect(6, 0, members, kSoon); });
  EXPECT_TRUE(rank.diary->comes("device connect 6"));
  rank.instance->abort(6);
  connecting.join();
  EXPECT_EQ(status.code, HVD_PEER_LOST) << status.message;
}

TEST(Composite, AnAbortThatCameBeforeItsGenerationHolds) {
  Rank rank;
  const std::vector<backend::Member> members = members_of({&rank});
  rank.instance->abort(9);
  EXPECT_EQ(rank.instance->connect(9, 0, members, kSoon).code, HVD_PEER_LOST);
  EXPECT_EQ(rank.diary->take(), Lines{});
  EXPECT_TRUE(rank.instance->connect(10, 0, members, kSoon).ok());
}

TEST(Relay, AFailureIsToldOnceAGeneration) {
  std::vector<std::string> said;
  backend::HostHandlers core;
  core.failure = [&](uint64_t generation, int32_t peer, const std::string& text) {
    said.push_back(std::to_string(generation) + " " + std::to_string(peer) + " " + text);
  };
  const auto relay = std::make_shared<Relay>(core);
  const backend::HostHandlers host = Relay::handlers(relay, "host", true),
                              device = Relay::handlers(relay, "device", false);
  host.failure(1, 2, "reset by peer");
  device.failure(1, 2, "remote error");
  device.failure(2, 0, "it again");
  host.failure(1, 2, "late");
  EXPECT_EQ(said, (Lines{"1 2 reset by peer", "2 0 it again"}));
}

TEST(Relay, EachHasKeysOfItsOwnAndOneCarriesMessages) {
  Lines keys;
  backend::HostHandlers core;
  core.message = [](uint64_t, int32_t, std::span<const uint8_t>) {};
  core.kv_set = [&](uint64_t, const std::string& key, std::span<const uint8_t>) {
    keys.push_back(key);
    return Status();
  };
  core.kv_get = [&](uint64_t, const std::string& key, Duration, std::vector<uint8_t>*) {
    keys.push_back(key);
    return Status();
  };
  const auto relay = std::make_shared<Relay>(core);
  const backend::HostHandlers host = Relay::handlers(relay, "host", true),
                              device = Relay::handlers(relay, "device", false);
  std::vector<uint8_t> value;
  EXPECT_TRUE(host.kv_set(1, "id", {}).ok() && device.kv_set(1, "id", {}).ok());
  EXPECT_TRUE(host.kv_get(1, "id", kSoon, &value).ok() && device.kv_get(1, "id", kSoon, &value).ok());
  EXPECT_EQ(keys, (Lines{"host/id", "device/id", "host/id", "device/id"}));
  EXPECT_TRUE(host.message);
  EXPECT_FALSE(device.message);
  EXPECT_FALSE(Relay::handlers(std::make_shared<Relay>(backend::HostHandlers{}), "host", true).kv_get);
}

}  // namespace
}  // namespace hvd::selection::test
