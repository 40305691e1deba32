// Two real workers at work, and newcomers whose offers look right to the driver and are not: nothing but the
// members' backends can tell (contract 16).
#include <thread>

#include "driver/job_fixture.h"
#include "elastic/run_loop.h"
#include "selection/selection.h"
#include "wire/member.h"

namespace hvd::driver {
namespace {

using test::Launched;
using test::ScriptedWorker;

/// Trains until the job ends: each step is an agreement among all.
class Member {
 public:
  explicit Member(Launched seat) : thread_([this, seat = std::move(seat)] { run(seat); }) {}
  ~Member() { thread_.join(); }
  test::Recorder<hvd_membership_info> places;  // at the beginning of each generation
  test::Recorder<Offer> offers;                // its own
  test::Recorder<Status> end;

 private:
  void run(const Launched& seat) {
    Options options([&](const std::string& name) -> std::optional<std::string> {
      std::string value = seat.variable(name);
      if (const char* modules = std::getenv("HVD_PLUGIN_PATH");
          modules != nullptr && name == "HVD_PLUGIN_PATH")
        value = modules;
      return value.empty() ? std::nullopt : std::optional(value);
    });
    options.set("backend", std::string("tcp"));
    options.set("interface", std::string("127.0.0.1"));
    const auto worker = std::make_unique<elastic::Worker>(options);
    Status status = worker->open(options, options.duration("init_timeout"));
    if (!status.ok()) return end.add(status);
    elastic::RunLoop loop(*worker, nullptr);
    hvd_status last = HVD_OK;
    bool again = true;
    while ((status = loop.next(last, &again)).ok() && again) {
      const session::Assignment assignment = worker->assignment();
      for (const Offer& offer : assignment.members[static_cast<size_t>(assignment.rank)].offers)
        offers.add(offer);
      places.add(worker->membership());
      Status step;
      while (step.ok()) step = worker->check_host_updates();
      last = step.code;
    }
    end.add(status);
  }
  std::thread thread_;
};

class Newcomer : public test::JobTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(Newcomer, AGarbledAddressIsItsOwnersFault) {
  set("hosts", "");
  set("np", "2");
  set("min_np", "2");
  set("max_np", "3");
  set("restart_delay_min", "0");
  set("discovery_interval", "0.01");
  const auto three = std::make_shared<std::atomic<bool>>(false);  // the driver may ask until TearDown
  make();
  driver->set_discovery([three](std::vector<membership::HostSlots>* hosts) {
    *hosts = {{"a", 2}};
    if (*three) hosts->push_back({"b", 1});
    return 0;
  });
  driver->start();
  ASSERT_TRUE(launched.wait_count(2));
  {
    Member first(launched.all()[0]);
    Member second(launched.all()[1]);
    const std::unique_ptr<Driver, void (*)(Driver*)> over(driver.get(),
                                                          [](Driver* d) { d->stop("the test is over"); });
    ASSERT_TRUE(first.places.wait_count(1) && second.places.wait_count(1)) << log.text();
    *three = true;
    ScriptedWorker& liar = join(3);
    wire::ReadyT ready;
    std::vector<Offer> offers = first.offers.all();
    ASSERT_FALSE(offers.empty());
    std::vector<Setting> settings = selection::settings_of(offers);
    settings.push_back({"option divergence_every (HVD_DIVERGENCE_EVERY)", "0"});
    settings.push_back({"option on_divergence (HVD_ON_DIVERGENCE)", "report"});
    settings.push_back({"option join_counts (HVD_JOIN_COUNTS)", "false"});
    for (Offer& offer : offers) {
      if (GetParam() == "garbage") offer.address.assign(offer.address.size(), 0x5a);
      if (GetParam() == "truncated" && !offer.address.empty()) offer.address.pop_back();
    }
    ready.addresses = wire::write_offers(offers);
    ready.settings = wire::write_settings(settings);
    liar.say(std::move(ready));
    // It got a place, since it looked right; then the members had a look.
    const wire::AssignmentT* assignment = liar.await(&wire::BodyUnion::AsAssignment);
    ASSERT_NE(assignment, nullptr) << log.text();
    EXPECT_EQ(assignment->members.size(), 3u);
    expect_refused(liar, wire::Refusal::Removed, "does not fit the other workers: ");
    for (Member* member : {&first, &second}) {
      ASSERT_TRUE(member->places.wait_count(2)) << log.text();
      EXPECT_EQ(member->places.all()[1].size, 2);
      EXPECT_EQ(member->places.all()[1].generation, 3u);
      EXPECT_TRUE(member->end.all().empty());
    }
    // Members hear of their places before the driver says so of itself.
    EXPECT_TRUE(test::eventually([&] { return driver->status().phase == HVD_PHASE_RUNNING; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Garbled, Newcomer, ::testing::Values("garbage", "truncated"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace hvd::driver
