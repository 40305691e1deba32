// Every short history of connects, aborts and departures, against what the whole history says.
#include "numeric/generation_gate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace hvd {
namespace {

enum class Kind { kEnter, kGiveUp, kLeave, kLeaveAny };

struct Event {
  Kind kind;
  uint64_t number;
};

constexpr uint64_t kNumbers[] = {0, 1, 2};

std::vector<Event> all_events() {
  std::vector<Event> events{{Kind::kLeaveAny, 0}};
  for (const Kind kind : {Kind::kEnter, Kind::kGiveUp, Kind::kLeave}) {
    for (const uint64_t number : kNumbers) events.push_back({kind, number});
  }
  return events;
}

std::string text_of(const std::vector<Event>& history) {
  static const char* const names[] = {"enter", "give up", "leave", "leave any"};
  std::string text;
  for (const Event& e : history)
    text += std::string(names[static_cast<int>(e.kind)]) + " " + std::to_string(e.number) + ", ";
  return text;
}

// No state: looks back, from the newest event to the oldest.
bool expect_given_up(const std::vector<Event>& history, uint64_t number) {
  for (const Event& e : history) {
    if (e.kind == Kind::kGiveUp && e.number >= number) return true;
  }
  return false;
}

bool expect_inside(const std::vector<Event>& history, uint64_t number) {
  for (size_t i = history.size(); i-- > 0;) {
    const Event& e = history[i];
    if (e.kind == Kind::kLeaveAny) return false;
    if ((e.kind == Kind::kLeave || e.kind == Kind::kGiveUp) && e.number == number) return false;
    if (e.kind != Kind::kEnter) continue;
    const bool entered =
        !expect_given_up({history.begin(), history.begin() + static_cast<long>(i)}, e.number);
    if (entered) return e.number == number;
  }
  return false;
}

size_t g_histories = 0;

void explore(const std::vector<Event>& events, GenerationGate gate, std::vector<Event>& history, int depth) {
  ++g_histories;
  for (const uint64_t number : kNumbers) {
    ASSERT_EQ(gate.inside(number), expect_inside(history, number)) << number << " after " << text_of(history);
    ASSERT_EQ(gate.given_up(number), expect_given_up(history, number))
        << number << " after " << text_of(history);
  }
  if (depth == 0) return;
  for (const Event& e : events) {
    GenerationGate next = gate;
    const bool inside = expect_inside(history, e.number), given_up = expect_given_up(history, e.number);
    history.push_back(e);
    switch (e.kind) {
      case Kind::kEnter: ASSERT_EQ(next.enter(e.number), !given_up) << text_of(history); break;
      case Kind::kGiveUp: ASSERT_EQ(next.give_up(e.number), inside) << text_of(history); break;
      case Kind::kLeave: ASSERT_EQ(next.leave(e.number), inside) << text_of(history); break;
      case Kind::kLeaveAny: {
        const std::optional<uint64_t> left = next.leave();
        for (const uint64_t number : kNumbers)
          ASSERT_EQ(left == number, gate.inside(number)) << text_of(history);
        break;
      }
    }
    explore(events, next, history, depth - 1);
    if (testing::Test::HasFatalFailure()) return;
    history.pop_back();
  }
}

TEST(GenerationGate, EveryShortHistoryEndsAsItsEventsSay) {
  std::vector<Event> history;
  explore(all_events(), {}, history, 5);
  EXPECT_EQ(g_histories, 111111U);  // 10 events, up to five of them
}

TEST(GenerationGate, AnAbortThatComesBeforeItsConnectIsNotForgotten) {
  GenerationGate gate;
  EXPECT_FALSE(gate.give_up(7));
  EXPECT_FALSE(gate.enter(6));
  EXPECT_FALSE(gate.enter(7));
  EXPECT_TRUE(gate.enter(8));
}

TEST(GenerationGate, EveryAbortOfTheCurrentOneIsToldOnce) {
  GenerationGate gate;
  ASSERT_TRUE(gate.enter(UINT64_MAX));
  EXPECT_FALSE(gate.give_up(3));
  EXPECT_TRUE(gate.inside(UINT64_MAX));
  EXPECT_TRUE(gate.give_up(UINT64_MAX));
  EXPECT_FALSE(gate.give_up(UINT64_MAX));
}

}  // namespace
}  // namespace hvd
