// Events: order, listeners, the queue and its descriptor.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <thread>

#include "elastic/notification_manager.h"
#include "starved.h"
#include "support.h"

namespace hvd::elastic {
namespace {

using test::kDeadline;
using test::Watched;

hvd_event event_of(hvd_event_kind kind, uint64_t generation = 0) {
  hvd_event event{};
  event.kind = kind;
  event.generation = generation;
  return event;
}

/// A listener as a program would write one: a function, its userdata and a destroy function.
struct Listener {
  Watched<std::vector<hvd_event>> events;
  std::atomic<int> destroyed{0};
  std::function<void(const hvd_event&)> then;

  Callback<hvd_listener_fn> callback() {
    return {[](void* self, const hvd_event* event) {
              auto* listener = static_cast<Listener*>(self);
              if (listener->then) listener->then(*event);
              listener->events.update([&](auto& all) { all.push_back(*event); });
            },
            this, [](void* self) { ++static_cast<Listener*>(self)->destroyed; }};
  }
  bool wait_for(size_t count) {
    return events.wait([&](const auto& all) { return all.size() >= count; });
  }
};

bool readable(int fd) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

TEST(NotificationManager, DeliversTheKindsAskedForInOrder) {
  NotificationManager manager(std::make_shared<Logger>());
  Listener lost;
  Listener all;
  manager.add(HVD_EVENT_PEER_LOST, lost.callback());
  manager.add(HVD_EVENT_ALL, all.callback());
  manager.post(event_of(HVD_EVENT_GENERATION, 1));
  manager.post(event_of(HVD_EVENT_PEER_LOST, 1));
  manager.post(event_of(HVD_EVENT_GENERATION, 2));
  ASSERT_TRUE(all.wait_for(3));
  manager.close();
  ASSERT_EQ(all.events.get().size(), 3U);
  EXPECT_EQ(all.events.get()[2].generation, 2U);
  EXPECT_LT(all.events.get()[0].sequence, all.events.get()[1].sequence);
  ASSERT_EQ(lost.events.get().size(), 1U);
  EXPECT_EQ(lost.events.get()[0].kind, static_cast<hvd_event_kind>(HVD_EVENT_PEER_LOST));
}

TEST(NotificationManager, DestroyRunsExactlyOnce) {
  Listener removed;
  Listener kept;
  Listener refused;
  {
    NotificationManager manager(std::make_shared<Logger>());
    const uint64_t id = manager.add(HVD_EVENT_ALL, removed.callback());
    manager.add(HVD_EVENT_ALL, kept.callback());
    EXPECT_THROW(manager.add(0, refused.callback()), Error);
    EXPECT_EQ(refused.destroyed, 1);
    manager.remove(id);
    EXPECT_EQ(removed.destroyed, 1);
    EXPECT_THROW(manager.remove(id), Error);
    EXPECT_EQ(kept.destroyed, 0);
  }
  EXPECT_EQ(removed.destroyed, 1);
  EXPECT_EQ(kept.destroyed, 1);
}

TEST(NotificationManager, RemovalWaitsForACallInFlight) {
  NotificationManager manager(std::make_shared<Logger>());
  Listener listener;
  Watched<bool> inside(false);
  Watched<bool> go_on(false);
  std::atomic<bool> returned{false};
  listener.then = [&](const hvd_event&) {
    inside.update([](bool& b) { b = true; });
    go_on.wait([](bool b) { return b; });
    returned = true;
  };
  const uint64_t id = manager.add(HVD_EVENT_ALL, listener.callback());
  manager.post(event_of(HVD_EVENT_GENERATION));
  ASSERT_TRUE(inside.wait([](bool b) { return b; }));
  std::thread remover([&] {
    manager.remove(id);
    EXPECT_TRUE(returned);
  });
  go_on.update([](bool& b) { b = true; });
  remover.join();
  EXPECT_EQ(listener.destroyed, 1);
}

TEST(NotificationManager, AListenerMayRemoveItself) {
  NotificationManager manager(std::make_shared<Logger>());
  Listener once;
  Listener after;
  uint64_t id = 0;
  once.then = [&](const hvd_event&) { manager.remove(id); };
  id = manager.add(HVD_EVENT_ALL, once.callback());
  manager.add(HVD_EVENT_ALL, after.callback());
  manager.post(event_of(HVD_EVENT_GENERATION, 1));
  manager.post(event_of(HVD_EVENT_GENERATION, 2));
  ASSERT_TRUE(after.wait_for(2));
  manager.close();
  EXPECT_EQ(once.events.get().size(), 1U);
  EXPECT_EQ(once.destroyed, 1);
}

TEST(NotificationManager, TheDescriptorIsReadableWhileThereIsAnEvent) {
  NotificationManager manager(std::make_shared<Logger>());
  hvd_event event{};
  EXPECT_THROW(manager.next(&event), Error);
  const int fd = manager.event_fd();
  EXPECT_EQ(manager.event_fd(), fd);
  EXPECT_FALSE(readable(fd));
  EXPECT_FALSE(manager.next(&event));
  manager.post(event_of(HVD_EVENT_GENERATION, 7));
  manager.post(event_of(HVD_EVENT_PEER_LOST, 7));
  EXPECT_TRUE(readable(fd));
  ASSERT_TRUE(manager.next(&event));
  EXPECT_EQ(event.generation, 7U);
  EXPECT_TRUE(readable(fd));
  ASSERT_TRUE(manager.next(&event));
  EXPECT_FALSE(readable(fd));
  EXPECT_FALSE(manager.next(&event));
}

TEST(NotificationManager, AFullQueueDropsTheOldestAndSaysHowMany) {
  NotificationManager manager(std::make_shared<Logger>());
  manager.event_fd();
  for (uint64_t i = 1; i <= kEventQueue + 3; ++i) manager.post(event_of(HVD_EVENT_GENERATION, i));
  hvd_event event{};
  ASSERT_TRUE(manager.next(&event));
  EXPECT_EQ(event.lost, 3U);
  EXPECT_EQ(event.generation, 4U);
  ASSERT_TRUE(manager.next(&event));
  EXPECT_EQ(event.lost, 0U);
}

TEST(NotificationManager, WithoutMemoryAnEventIsDeliveredOrCountedAsLost) {
  NotificationManager manager(std::make_shared<Logger>());
  struct Count {
    uint64_t delivered = 0, lost = 0, last = 0;
  };
  Watched<Count> count;  // takes no memory
  const auto add = [](void* self, const hvd_event* event) {
    static_cast<Watched<Count>*>(self)->update([&](Count& c) {
      ++c.delivered;
      c.lost += event->lost;
      c.last = event->sequence;
    });
  };
  manager.add(HVD_EVENT_ALL, {add, &count, nullptr});
  constexpr uint64_t kEvents = 100;
  for (uint64_t i = 1; i < kEvents; ++i) {
    const test::Starved starved(i % 3, test::Starved::Whose::kAnybodys);
    manager.post(event_of(HVD_EVENT_GENERATION, i));
    if (test::Starved::has_failed()) continue;  // it is lost, as the next one says
    ASSERT_TRUE(count.wait([&](const Count& c) { return c.last == i; }));
  }
  manager.post(event_of(HVD_EVENT_GENERATION, kEvents));
  ASSERT_TRUE(count.wait([&](const Count& c) { return c.last == kEvents; }));
  EXPECT_EQ(count.get().delivered + count.get().lost, kEvents);
}

TEST(NotificationManager, CloseDeliversWhatIsQueuedAndRefusesTheRest) {
  Listener listener;
  NotificationManager manager(std::make_shared<Logger>());
  manager.add(HVD_EVENT_ALL, listener.callback());
  for (int i = 0; i < 20; ++i) manager.post(event_of(HVD_EVENT_GENERATION));
  manager.close();
  manager.post(event_of(HVD_EVENT_GENERATION));
  EXPECT_EQ(listener.events.get().size(), 20U);
  EXPECT_EQ(listener.destroyed, 1);
  Listener late;
  EXPECT_THROW(manager.add(HVD_EVENT_ALL, late.callback()), Error);
  EXPECT_EQ(late.destroyed, 1);
}

// Under the thread sanitizer this shows who reads what a close changes.
TEST(NotificationManager, WhoAsksDuringACloseIsAnswered) {
  for (int round = 0; round < 20; ++round) {
    Listener listener;
    NotificationManager manager(std::make_shared<Logger>());
    std::atomic<bool> in_it{false};
    listener.then = [&](const hvd_event&) { in_it = manager.in_listener(); };
    const uint64_t id = manager.add(HVD_EVENT_ALL, listener.callback());
    manager.post(event_of(HVD_EVENT_GENERATION));
    std::atomic<bool> over{false};
    std::thread asker([&] {
      while (!over) EXPECT_FALSE(manager.in_listener());
    });
    std::thread remover([&] {
      try {
        manager.remove(id);
      } catch (const Error&) {}  // the close was first
    });
    std::thread closer([&] { manager.close(); });
    manager.close();
    closer.join();
    over = true;
    asker.join();
    remover.join();
    EXPECT_EQ(in_it, !listener.events.get().empty());
    EXPECT_EQ(listener.destroyed, 1);
  }
}

}  // namespace
}  // namespace hvd::elastic
