// Hosts that come, go and fail: contract 1, 2, 5; H1..H8, F3.
#include "membership/host_manager.h"
#include "membership/impl.h"
#include "membership/script.h"

namespace hvd::membership::test {
namespace {

TEST(Hosts, IdenticalListIsNoEpochAndNewHostsGoLast) {
  Script s(sizes(1, 1, 0));
  s.hosts({{"b", 1}});
  EXPECT_EQ(s.membership.epoch(), 1u);
  s.hosts({{"b", 1}});
  EXPECT_EQ(s.membership.epoch(), 1u);
  s.ready(1);
  EXPECT_EQ(s.hosts({{"a", 1}, {"b", 2}}).started(), (Names{"2@b:1", "3@a:0"})) << "b keeps its place";
  EXPECT_EQ(s.one<Notify>().added, (Names{"b", "a"}));
  const uint64_t epoch = s.membership.epoch();
  EXPECT_TRUE(s.hosts({{"b", 2}, {"a", 1}}).latest.empty()) << "order alone is no change";
  EXPECT_EQ(s.membership.epoch(), epoch);
}

TEST(Hosts, GrowAndShrink) {  // H1
  Script s = running(sizes(2, 2, 4));
  s.hosts({{"a", 2}, {"b", 2}});
  EXPECT_FALSE(s.one<Notify>().interrupt) << "discovery alone interrupts nobody";
  EXPECT_TRUE(s.ready(3).none<Notify>());
  const Notify join = s.ready(4).one<Notify>();
  EXPECT_TRUE(join.interrupt);
  EXPECT_EQ(join.to, (Ids{1, 2}));
  s.ready(2, 1, true, 5);
  EXPECT_TRUE(s.none<Abort>()) << "they leave by agreement";
  EXPECT_EQ(s.ready(1, 1, true, 5).members(), (Ids{1, 2, 3, 4}));
  EXPECT_GT(s.one<Assign>().epoch, join.epoch) << "contract 1: the interrupt ends with its generation";
  s.all_synced({1, 2, 3, 4}, 5);

  EXPECT_TRUE(s.hosts({{"b", 2}}).one<Notify>().interrupt);
  s.ready(1, 2, true, 6).ready(2, 2, true, 6).ready(3, 2, true, 6).ready(4, 2, true, 6);
  EXPECT_EQ(s.members(), (Ids{3, 4}));
  EXPECT_EQ(s.stopped(), (Ids{1, 2}));
  EXPECT_EQ(s.all<StopWorker>()[0].reason, "host a was removed from the job");
  EXPECT_EQ(s.membership.generation(), 3u);
}

TEST(Hosts, OnlyTheSlotThatIsTakenGoes) {  // H2: the highest first
  Script s = running(sizes(3, 1, 3));
  EXPECT_TRUE(s.hosts({{"a", 2}}).one<Notify>().interrupt);
  s.ready(1, 1, true).ready(2, 1, true).ready(3, 1, true);
  EXPECT_EQ(s.members(), (Ids{1, 2}));
  EXPECT_EQ(s.one<StopWorker>().reason, "slot 2 of host a was removed from the job");
  EXPECT_EQ(s.hosts({{"a", 3}}).started(), (Names{"4@a:2"}));
}

TEST(Hosts, BeyondTheMaximumNobodyIsInterrupted) {  // H3, contract 2
  Script s = running(sizes(2, 1, 2));
  s.hosts({{"b", 4}, {"a", 2}});
  EXPECT_FALSE(s.one<Notify>().interrupt);
  EXPECT_TRUE(s.none<StartWorker>());
  EXPECT_FALSE(s.hosts({{"a", 2}}).one<Notify>().interrupt);
  EXPECT_EQ(s.membership.epoch(), 3u) << "each change is an epoch of its own";
  EXPECT_EQ(s.membership.usable_slots(s.now), 2);
}

// A loop over the slots would take hours here.
TEST(Hosts, SlotsAreCountedWithoutALoopOverThem) {
  MembershipConfig config = sizes(2, 2, 2);
  config.hosts_fixed = true;
  config.restart = false;
  Script s(config);
  std::vector<HostSlots> list;
  for (int i = 0; i < 65536; ++i) list.push_back({"h" + std::to_string(i), 1 << 20});
  s.hosts(list);
  EXPECT_EQ(s.started(), (Names{"1@h0:0", "2@h0:1"}));
  EXPECT_EQ(s.membership.usable_slots(s.now), 2);
  for (uint64_t worker = 1; worker < 50; ++worker) {
    EXPECT_TRUE(s.lost(worker, LossKind::kStartFailed).none<Finish>()) << "slots enough are left";
    EXPECT_EQ(s.membership.usable_slots(s.now), 2);
  }
}

TEST(Hosts, SlotsThatGetNoWorkerAreNotCounted) {
  MembershipConfig config = sizes(1, 1, 0);
  config.restart = false;
  HostManager hosts(config);
  const Time now{};
  const auto nobody = [](const std::string&) { return false; };
  hosts.set_hosts({{"a", 4}, {"b", 3}}, nobody);
  HostManager::Places on_a{{0, 1}, {3, 2}, {9, 3}};  // the last by itself, in no slot of the list
  const auto places = [&](const std::string& host) -> const auto& {
    static const HostManager::Places none;
    return host == "a" ? on_a : none;
  };
  EXPECT_EQ(hosts.unblocked_slots(now), 7);
  EXPECT_EQ(hosts.lasting_slots(places), 5);
  hosts.withdraw("a", 3);
  hosts.withdraw("a", 1);
  EXPECT_EQ(hosts.unblocked_slots(now), 5);
  hosts.record_failure("a", 2, now);  // for good: nothing is started again
  hosts.record_failure("a", 3, now);  // and where a worker lives
  EXPECT_EQ(hosts.lasting_slots(places), 4);
  hosts.set_hosts({{"a", 3}, {"b", 3}}, nobody);
  EXPECT_EQ(hosts.unblocked_slots(now), 5) << "slot 3 is there no more";
  EXPECT_EQ(hosts.lasting_slots(places), 4);
  hosts.drain("b");
  EXPECT_EQ(hosts.unblocked_slots(now), 2);
  EXPECT_EQ(hosts.lasting_slots(places), 4) << "it may be undrained";
  config.blocklist_after = 1;
  hosts.blame("b", 0, now);
  EXPECT_EQ(hosts.lasting_slots(places), 1) << "blocked for good";
}

size_t bytes_of(const Names& names) {
  size_t bytes = 0;
  for (const std::string& name : names) bytes += name.size();
  return bytes;
}

// 65,536 names of 253 bytes would be more than a channel takes: it would break, to every member.
TEST(Hosts, MembersAreToldOfNoMoreThanAMessageHolds) {
  Script s(sizes(2, 1, 2));
  s.hosts({{"a", 1}, {"b", 1}}).ready(1).ready(2).all_synced({1, 2});
  std::vector<HostSlots> many{{"a", 1}};
  for (int i = 0; i < 65535; ++i) {
    std::string name = "x" + std::to_string(i);
    many.push_back({name + std::string(253 - name.size(), '-'), 1});
  }
  many.push_back({"b", 2});
  const Notify grown = s.hosts(many).one<Notify>();
  EXPECT_LE(bytes_of(grown.added), 16u << 10);
  ASSERT_GT(grown.added.size(), 2u);
  EXPECT_EQ(grown.added[0], "b");
  EXPECT_EQ(grown.added[1], many[1].name);
  const Notify gone = s.hosts({{"a", 1}}).one<Notify>();
  EXPECT_LE(bytes_of(gone.removed), 16u << 10);
  EXPECT_EQ(std::count(gone.removed.begin(), gone.removed.end(), "b"), 1);
}

TEST(Hosts, ThoseWithWorkersAreNamedWhateverOthersAre) {
  HostNames names;
  for (int i = 0; i < 65536; ++i) names.add("idle" + std::to_string(i), false);
  for (const char* name : {"used", "used", "also"}) names.add(name, true);
  const Names told = names.take();
  ASSERT_LT(told.size(), 1000u);
  EXPECT_EQ((Names{told.end() - 2, told.end()}), (Names{"used", "also"}));
  EXPECT_TRUE(names.take().empty());
  for (int i = 0; i < 65536; ++i) names.add(std::string(240, 'x') + std::to_string(i), true);
  EXPECT_LE(bytes_of(names.take()), 4u << 20);
}

TEST(Hosts, ChangesThatNobodyHearsOfDoNotAddUp) {
  Script s = running(sizes(2, 1, 2));
  s.lost(2);  // no generation runs until worker 1 is ready
  for (int i = 0; i < 1000; ++i) s.hosts({{"a", 2}, {"b", 1}}).hosts({{"a", 2}, {"c", 1}});
  s.ready(1, 1, true);
  EXPECT_EQ(s.one<Notify>().added, (Names{"b", "c"})) << "each once";
}

TEST(Hosts, RollingReplacement) {  // H4
  Script s(sizes(2, 2, 2));
  s.hosts({{"1", 1}, {"2", 1}}).ready(1).ready(2).all_synced({1, 2});
  s.hosts({{"2", 1}, {"3", 1}});
  EXPECT_EQ(s.started(), Names{"3@3:0"});
  EXPECT_FALSE(s.one<Notify>().interrupt) << "below the minimum until worker 3 is ready";
  EXPECT_TRUE(s.ready(3).one<Notify>().interrupt);
  s.ready(1, 1, true, 2).ready(2, 1, true, 2);
  EXPECT_EQ(s.members(), (Ids{2, 3}));
  s.all_synced({2, 3}, 2).hosts({{"3", 1}, {"4", 1}}).ready(4).ready(2, 2, true, 9).ready(3, 2, true, 9);
  EXPECT_EQ(s.members(), (Ids{3, 4}));
  EXPECT_EQ(s.one<Assign>().members()[0].revision, 9u);
}

TEST(Hosts, NothingInCommonHandsOver) {  // H5, contract 5
  Script s(sizes(2, 2, 2));
  s.hosts({{"1", 1}, {"2", 1}}).ready(1).ready(2).all_synced({1, 2});
  EXPECT_EQ(s.hosts({{"3", 1}, {"4", 1}}).started(), (Names{"3@3:0", "4@4:0"}));
  EXPECT_TRUE(s.ready(3).none<Notify>()) << "one is fewer than the minimum";
  EXPECT_TRUE(s.ready(4).one<Notify>().interrupt);
  s.ready(1, 1, true, 6).ready(2, 1, true, 6);
  EXPECT_EQ(s.members(), (Ids{1, 3, 4})) << "one holder comes on top of the maximum";
  EXPECT_EQ(s.stopped(), Ids{2});
  EXPECT_TRUE(s.synced(1, 6).none<Notify>());
  EXPECT_TRUE(s.membership.worker_synced(4, 1, 6, s.now).empty()) << "contract 11: of a generation before it";
  EXPECT_TRUE(s.synced(4, 6).one<Notify>().interrupt) << "it is handed over";
  s.synced(3, 6).ready(1, 2, true, 7).ready(3, 2, true, 7).ready(4, 2, true, 7);
  EXPECT_EQ(s.members(), (Ids{3, 4}));
  EXPECT_EQ(s.stopped(), Ids{1});
}

TEST(Hosts, HandOverThatFailsEndsTheJobInsteadOfBeginningAgain) {  // H5, contract 8
  Script s(sizes(2, 2, 2));
  s.hosts({{"1", 1}, {"2", 1}}).ready(1).ready(2).all_synced({1, 2});
  s.hosts({{"3", 1}, {"4", 1}}).ready(3).ready(4).ready(1, 1, true, 6).ready(2, 1, true, 6);
  s.lost(1).ready(3, 2).ready(4, 2);
  EXPECT_EQ(
      s.one<Finish>().sentence,
      "no survivor holds state: rank 1 (worker 3 on 3), rank 2 (worker 4 on 4); last: rank 0 (worker 1 on 1) "
      "lost: connection closed");
}

TEST(Hosts, UndoneAtOnceInterruptsNobody) {  // H6, contract 2
  Script s = running(sizes(2, 1, 2));
  const Notify removed = s.hosts({{"a", 1}}).one<Notify>();
  EXPECT_TRUE(removed.interrupt);
  EXPECT_EQ(removed.removed, Names{"a"});
  const Notify undone = s.hosts({{"a", 2}}).one<Notify>();
  EXPECT_FALSE(undone.interrupt);
  EXPECT_GT(undone.epoch, removed.epoch) << "contract 1: the newer epoch is the larger word";
}

TEST(Hosts, NewcomerThatDiesBeforeItIsTakenInIsANewTruth) {  // contract 2
  Script s = running(sizes(1, 1, 2));
  s.hosts({{"a", 2}});
  const Notify there = s.ready(2).one<Notify>();
  EXPECT_TRUE(there.interrupt);
  const Notify gone = s.lost(2).one<Notify>();
  EXPECT_FALSE(gone.interrupt);
  EXPECT_EQ(gone.epoch, there.epoch + 1);
}

TEST(Hosts, RemovalBelowTheMinimumWaitsForANewHost) {  // H7
  Script s = running(sizes(2, 2, 2));
  EXPECT_FALSE(s.hosts({{"a", 1}}).one<Notify>().interrupt);
  EXPECT_EQ(s.hosts({{"a", 1}, {"b", 1}}).started(), Names{"3@b:0"});
  EXPECT_TRUE(s.ready(3).one<Notify>().interrupt);
  s.ready(1, 1, true).ready(2, 1, true);
  EXPECT_EQ(s.members(), (Ids{1, 3}));
}

TEST(Hosts, RemovalBelowTheMinimumForGoodEndsTheJob) {  // H7, F13, contract 12
  Script s = running(sizes(2, 2, 2));
  s.hosts({{"a", 1}});
  EXPECT_TRUE(s.wait(599).none<Finish>());
  EXPECT_FALSE(s.wait(1).one<Finish>().success);
}

TEST(Hosts, HostThatArrivesWhileFormingIsTakenInNowOrNext) {  // H8
  Script s = running(sizes(2, 1, 4));
  s.lost(2).hosts({{"a", 2}, {"b", 1}});
  EXPECT_TRUE(s.none<Notify>()) << "nobody is in a generation";
  s.ready(3);
  s.ready(1, 1, true);
  EXPECT_EQ(s.members(), (Ids{1, 3}));
  EXPECT_EQ(s.one<Notify>().added, Names{"b"}) << "contract 2: no update is lost";
  EXPECT_FALSE(s.one<Notify>().interrupt);
}

TEST(Hosts, SettlingIsBounded) {
  Script s = running(sizes(1, 1, 3));
  s.hosts({{"a", 3}});
  EXPECT_TRUE(s.ready(2).none<Notify>()) << "worker 3 may be ready soon";
  EXPECT_EQ(s.membership.next_tick(), s.now + seconds(0.5));
  EXPECT_TRUE(s.wait(0.3).ready(2).none<Notify>()) << "contract 11: said again, it waits no longer for that";
  EXPECT_TRUE(s.wait(0.2).one<Notify>().interrupt);
  EXPECT_EQ(s.ready(1, 1, true).members(), (Ids{1, 2}));
  EXPECT_TRUE(s.ready(3).one<Notify>().interrupt);
}

TEST(BackOff, DoublesAndIsClearedBySuccess) {  // F3
  MembershipConfig config = sizes(2, 1, 2);
  config.blocklist_after = 100;
  Script s = running(config);
  double delay = 1;
  s.lost(2).ready(1, 1, true);
  uint64_t worker = 3;
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(s.wait(delay - 0.001).none<StartWorker>()) << delay;
    EXPECT_EQ(s.wait(0.001).one<StartWorker>().worker, worker);
    s.lost(worker++, LossKind::kExited);
    delay = std::min(delay * 2, 60.0);
  }
  EXPECT_EQ(s.wait(60).one<StartWorker>().worker, worker);
  s.ready(worker).ready(1, 2, true).all_synced({1, worker});
  s.lost(worker);
  EXPECT_EQ(s.wait(1).one<StartWorker>().worker, worker + 1);
}

TEST(BackOff, NoRestartMeansNever) {
  MembershipConfig config = sizes(2, 1, 2);
  config.restart = false;
  Script s = running(config);
  s.lost(2).ready(1, 1, true);
  EXPECT_TRUE(s.wait(10'000).none<StartWorker>());
  EXPECT_EQ(s.membership.phase(), Phase::kRunning);
}

TEST(Blocklist, AHostThatFailsAgainAndAgainCoolsDown) {  // F3
  MembershipConfig config = sizes(1, 1, 2);
  config.blocklist_cooldown_min = seconds(100);
  config.blocklist_cooldown_max = seconds(150);
  Script s = running(config);
  s.hosts({{"a", 1}, {"b", 1}});
  uint64_t worker = 2;
  const auto fail_thrice = [&] {
    for (int i = 0; i < 3; ++i) {
      if (i > 0) s.wait(60);
      s.lost(worker++, LossKind::kExited);
    }
  };
  fail_thrice();
  EXPECT_EQ(s.membership.blocked_hosts(s.now), 1);
  EXPECT_EQ(s.membership.usable_slots(s.now), 1);
  const uint64_t epoch = s.membership.epoch();
  EXPECT_TRUE(s.wait(99).none<StartWorker>());
  EXPECT_EQ(s.wait(1).started(), Names{"5@b:0"});
  EXPECT_EQ(s.membership.epoch(), epoch + 1);
  EXPECT_EQ(s.one<Notify>().added, Names{"b"});
  fail_thrice();
  s.hosts({{"a", 1}}).hosts({{"a", 1}, {"b", 1}});
  EXPECT_EQ(s.membership.blocked_hosts(s.now), 1) << "removed and added again: the record stays";
  EXPECT_TRUE(s.wait(149).none<StartWorker>());
  EXPECT_FALSE(s.wait(1).none<StartWorker>());
}

TEST(Blocklist, AHostThatGoesDownOnceHasFailedOnce) {
  Script s(sizes(5, 1, 5));
  s.hosts({{"a", 1}, {"b", 4}});
  for (uint64_t w = 1; w <= 5; ++w) s.ready(w);
  for (uint64_t w = 2; w <= 5; ++w) s.lost(w);
  EXPECT_EQ(s.membership.blocked_hosts(s.now), 0);
}

TEST(Blocklist, LivingMembersOfABlockedHostStay) {
  Script s = running(sizes(2, 1, 3));
  s.hosts({{"a", 3}});
  for (uint64_t w = 3; w <= 5; ++w) s.lost(w, LossKind::kStartFailed).wait(60);
  EXPECT_EQ(s.membership.blocked_hosts(s.now), 1);
  EXPECT_EQ(s.membership.size(), 2);
  EXPECT_EQ(s.membership.phase(), Phase::kRunning);
  EXPECT_EQ(s.membership.resets(), 0);
}

MembershipConfig fixed(MembershipConfig config) {
  config.hosts_fixed = true;
  return config;
}

// Nobody would come: what is left to wait for is the operator.
TEST(FixedHosts, AJobWhoseHostsAreAllBlockedForGoodEndsAtOnce) {
  Script s(fixed(sizes(2, 2, 2)));
  s.hosts({{"a", 2}});
  s.lost(1, LossKind::kExited).lost(2, LossKind::kExited);
  EXPECT_EQ(s.wait(1).started(), (Names{"3@a:0", "4@a:1"}));
  const Finish end = s.lost(3, LossKind::kExited).one<Finish>();  // worker 4 is one too few
  EXPECT_FALSE(end.success);
  for (const char* part : {"not enough slots: 2 needed (--min-np), 0 available", "the hosts are fixed",
                           "1 host on the blocklist"}) {
    EXPECT_NE(end.sentence.find(part), std::string::npos) << end.sentence;
  }
}

TEST(FixedHosts, AHostThatComesOffTheBlocklistIsWaitedFor) {
  MembershipConfig config = fixed(sizes(1, 1, 1));
  config.blocklist_cooldown_min = config.blocklist_cooldown_max = seconds(30);
  Script s(config);
  s.hosts({{"a", 1}});
  for (uint64_t worker = 1; worker <= 3; ++worker) {
    EXPECT_TRUE(s.lost(worker, LossKind::kExited).none<Finish>());
    EXPECT_FALSE(s.wait(30).none<StartWorker>());
  }
}

TEST(FixedHosts, WithoutRestartTheSurvivorsOfTooFewEndAtOnce) {
  MembershipConfig config = fixed(sizes(2, 2, 2));
  config.restart = false;
  EXPECT_FALSE(running(config).lost(2).one<Finish>().success);
  config.min_np = 1;
  EXPECT_TRUE(running(config).lost(2).none<Finish>()) << "one is enough";
  config.min_np = 2;
  config.hosts_fixed = false;
  EXPECT_TRUE(running(config).lost(2).none<Finish>()) << "another host may be discovered";
}

}  // namespace
}  // namespace hvd::membership::test
